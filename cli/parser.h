// SPDX-License-Identifier: Apache-2.0
// From a command line to the run of a command.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"

namespace weightfs::cli {

// Sets the targets of the options of the command that `arguments` name, and runs it. `commands` begin with the program
// itself. Answers --help and --version on standard output; wrong usage is one line on standard error. Returns the exit
// code of the process.
int ParseAndRun(const std::vector<Command>& commands, const std::vector<std::string>& arguments);

}  // namespace weightfs::cli
