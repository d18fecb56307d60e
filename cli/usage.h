// SPDX-License-Identifier: Apache-2.0
// The errors of a command line, in the words of this program: CLI11 parses, and its own messages are never shown.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs::cli {

// "weightfs: format: WHAT; see 'weightfs format --help'", without a newline. `command` is empty for the program itself.
std::string UsageLine(std::string_view command, std::string_view what);

// Prints UsageLine to standard error. Returns the exit code for wrong usage: 16 for fsck, as fsck(8), else 2.
int FailUsage(std::string_view command, std::string_view what);
int UsageExitCode(std::string_view command);

// The command line `arguments`, which `app` has refused with `error`: the subcommand, if it names one, and what is
// wrong with the first wrong argument.
struct UsageError {
  std::string command, what;
};
UsageError DescribeUsageError(const CLI::App& app, const std::vector<std::string>& arguments,
                              const CLI::ParseError& error);

// Checks for CLI::Option::check: a size as ParseSize takes it; a whole number within bounds;
// seconds, fractions too, from 0 to `most`.
std::string CheckSize(const std::string& text);
std::function<std::string(const std::string&)> CheckNumber(uint64_t least, uint64_t most);
std::function<std::string(const std::string&)> CheckSeconds(double most);

// Makes every option of `app` and of its subcommands that takes a value refuse the name of another option as one.
void RefuseOptionsAsValues(CLI::App& app);

// What an error shows as the value of an option, e.g. "8G" for "--size"; empty when the option is not in the table.
std::string_view ExampleValue(std::string_view option);

// The one of `known` that `word` probably means; empty when none is close.
std::string_view DidYouMean(std::string_view word, std::span<const std::string> known);

}  // namespace weightfs::cli
