// SPDX-License-Identifier: Apache-2.0
// The program from its command line to its exit code.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

namespace weightfs::cli {

// All subcommands. Parsing runs the one that is chosen and leaves the exit code in `exit_code`, which outlives the App.
std::unique_ptr<CLI::App> MakeApp(int* exit_code);

// Runs the subcommand that `arguments` name (without the program's own name). Returns the exit code of the process;
// wrong usage, or output that cannot be written, is one line on standard error.
int RunProgram(const std::vector<std::string>& arguments);

}  // namespace weightfs::cli
