// SPDX-License-Identifier: Apache-2.0
// The words of a command line, their errors, and the lines of --help.
#pragma once

#include <set>
#include <span>

#include "cli/options.h"

namespace weightfs::cli {

// Prints "weightfs: format: WHAT; see 'weightfs format --help'" to standard error. `command` is empty for the program
// itself. Returns the exit code for wrong usage: 16 for verify, like fsck(8), otherwise 2.
int FailUsage(std::string_view command, std::string_view what);

// The words behind a command, read as CLI11 reads them.
struct ScannedWords {
  std::vector<std::string> arguments;  // the positional ones
  std::multiset<const Option*> given;
  const Option* unfinished = nullptr;  // the last word; the next one is or may be its value
  bool options_ended = false;          // by "--"
  std::string wrong;                   // the first error of an option, if there is one
};
ScannedWords ScanWords(const Command& command, std::span<const std::string> words);

// Returns the first error of the words behind a command, or an empty string. Values are not checked.
std::string FindError(const Command& command, std::span<const std::string> words);

// Returns the error of a first word that names none of the commands, which begin with the program itself.
std::string FindError(std::span<const Command> commands, const std::string& first);

// Lines of --help: a name, and its meaning behind it, in at most 100 columns.
std::string HelpEntry(std::string_view name, const std::string& meaning);

// Breaks a paragraph into lines of at most `columns` columns.
std::string Wrap(const std::string& text, size_t columns);

}  // namespace weightfs::cli
