// SPDX-License-Identifier: Apache-2.0
// The program, from command line to exit code.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

namespace weightfs::cli {

// Creates all subcommands. Parsing runs the chosen one and sets `exit_code`, which must outlive the App.
std::unique_ptr<CLI::App> MakeApp(int* exit_code);

// Runs the subcommand named by `arguments`, which exclude the program's own name. Returns the exit code of the process.
// Wrong usage, and output that cannot be written, print one line on standard error.
int RunProgram(const std::vector<std::string>& arguments);

}  // namespace weightfs::cli
