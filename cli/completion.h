// SPDX-License-Identifier: Apache-2.0
// Completions of the command line for shells: commands, options, their values and mount options.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"

namespace weightfs::cli {

// Scripts that the shell loads by the name of the program: bash-completion's `weightfs`, zsh's `_weightfs`, and fish's
// `weightfs.fish`. They start no program.
std::string BashCompletion(const std::vector<Command>& commands);
std::string ZshCompletion(const std::vector<Command>& commands);
std::string FishCompletion(const std::vector<Command>& commands);

}  // namespace weightfs::cli
