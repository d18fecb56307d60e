// SPDX-License-Identifier: Apache-2.0
// Completion of the command line in shells. The scripts in cli/completion/ run `weightfs __complete WORD...`.
#pragma once

#include <span>
#include <string>

#include "cli/options.h"

namespace weightfs::cli {

// The answer for the words behind the program's name, of which the last one is incomplete. The first line says what
// completes it: "file" or "directory" (the value behind --NAME=, if the word has one), "list" (the words below, without
// a space behind them), or "word". Each further line is a word and its meaning, separated by a tab; the shell selects
// those that match.
std::string Complete(std::span<const Command> commands, std::span<const std::string> words);

}  // namespace weightfs::cli
