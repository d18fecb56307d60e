// SPDX-License-Identifier: Apache-2.0
// The words behind a command: their meaning, their errors, and --help.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"

namespace weightfs::cli {

// Prints "weightfs: format: WHAT; see 'weightfs format --help'" to standard error. `command` is empty for the program
// itself. Returns the exit code for wrong usage: 16 for verify, like fsck(8), otherwise 2.
int FailUsage(std::string_view command, std::string_view what);

struct ScannedWords {
  std::vector<std::string> arguments;  // the positional ones
  std::map<const Option*, std::vector<std::string>> given;  // with their values; a flag has empty ones
  const Option* unfinished = nullptr;  // the last word; the next one is or may be its value
  bool options_ended = false;          // by "--"
  std::string wrong;                   // the first error of an option, if there is one
};
ScannedWords ScanWords(const Command& command, std::span<const std::string> words);

// Sets the targets of the options and arguments. Returns the first error, after which no target was set, or an empty
// string.
std::string SetTargets(const Command& command, const ScannedWords& scanned);

// " (did you mean 'format'?)", or an empty string.
std::string Guess(std::string_view word, const std::vector<std::string>& known);

// The text of --help. `subcommands` are those of the program itself.
std::string HelpOf(const Command& command, std::span<const Command> subcommands = {});

// Lines of --help: a name, and its meaning behind it, in at most 100 columns.
std::string HelpEntry(std::string_view name, const std::string& meaning);

// Breaks a paragraph into lines of at most `columns` columns.
std::string Wrap(const std::string& text, size_t columns);

}  // namespace weightfs::cli
