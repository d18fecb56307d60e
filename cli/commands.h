// SPDX-License-Identifier: Apache-2.0
// The subcommands, one file each. Every function adds one to the program; when it is the one chosen, it runs and leaves
// the exit code of the process in `exit_code`.
#pragma once

#include <CLI/CLI.hpp>

namespace weightfs::cli {

void AddFormat(CLI::App& app, int* exit_code);
void AddMount(CLI::App& app, int* exit_code);
void AddUmount(CLI::App& app, int* exit_code);
void AddFsck(CLI::App& app, int* exit_code);
void AddInfo(CLI::App& app, int* exit_code);
void AddDoctor(CLI::App& app, int* exit_code);
void AddBench(CLI::App& app, int* exit_code);

}  // namespace weightfs::cli
