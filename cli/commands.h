// SPDX-License-Identifier: Apache-2.0
// The subcommands, one file each. Every function adds one subcommand to the program. If it is chosen, it runs and sets
// `exit_code` to the exit code of the process.
#pragma once

#include <CLI/CLI.hpp>

namespace weightfs::cli {

void AddFormat(CLI::App& app, int* exit_code);
void AddMount(CLI::App& app, int* exit_code);
void AddUmount(CLI::App& app, int* exit_code);
void AddFsck(CLI::App& app, int* exit_code);
void AddRecover(CLI::App& app, int* exit_code);
void AddScrub(CLI::App& app, int* exit_code);
void AddVerify(CLI::App& app, int* exit_code);
void AddInfo(CLI::App& app, int* exit_code);
void AddPublish(CLI::App& app, int* exit_code);
void AddUnpublish(CLI::App& app, int* exit_code);
void AddPush(CLI::App& app, int* exit_code);
void AddPull(CLI::App& app, int* exit_code);
void AddVersions(CLI::App& app, int* exit_code);
void AddPrune(CLI::App& app, int* exit_code);
void AddStats(CLI::App& app, int* exit_code);
void AddTop(CLI::App& app, int* exit_code);
void AddDoctor(CLI::App& app, int* exit_code);
void AddBench(CLI::App& app, int* exit_code);

}  // namespace weightfs::cli
