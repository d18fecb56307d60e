// SPDX-License-Identifier: Apache-2.0
// The words of a command line, and their errors.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"

namespace weightfs::cli {

// Prints "weightfs: format: WHAT; see 'weightfs format --help'" to standard error. `command` is empty for the program
// itself. Returns the exit code for wrong usage: 16 for fsck, like fsck(8), otherwise 2.
int FailUsage(std::string_view command, std::string_view what);

// Explains why the parser rejected the command line `arguments` of the program `commands`: the command, if one is
// named, and the problem of the first wrong argument; `otherwise` if each of them alone is right.
struct UsageError {
  std::string command, what;
};
UsageError DescribeUsageError(const std::vector<Command>& commands, const std::vector<std::string>& arguments,
                              std::string otherwise);

// The words behind a command, read the same way as by CLI11.
struct ScannedWords {
  std::vector<std::string> arguments;  // the positional ones
  std::map<const Option*, unsigned> given;
  const Option* unfinished = nullptr;  // the last word; the next one is or may be its value
  bool options_ended = false;          // by "--"
  std::string wrong;                   // the first error of an option, if there is one
};
ScannedWords ScanWords(const Command& command, std::span<const std::string> words);

// "needs a value, e.g. --size 8G", for an option that the user wrote as `name`.
std::string NeedsValue(std::string_view name, const Option& option);

}  // namespace weightfs::cli
