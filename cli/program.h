// SPDX-License-Identifier: Apache-2.0
// The program, from command line to exit code.
#pragma once

#include "cli/options.h"

namespace weightfs::cli {

// The program itself, then its commands in the order of --help.
std::vector<Command> MakeCommands();

// Sets the targets of the options of the command that `arguments` name, and runs it. `commands` begin with the program
// itself. Answers --help and --version on standard output; wrong usage is one line on standard error. Returns the exit
// code of the process.
int ParseAndRun(const std::vector<Command>& commands, const std::vector<std::string>& arguments);

// Runs the subcommand named by `arguments`, which exclude the program's own name. Returns the exit code of the process.
// Wrong usage, and output that cannot be written, print one line on standard error.
int RunProgram(const std::vector<std::string>& arguments);

}  // namespace weightfs::cli
