// SPDX-License-Identifier: Apache-2.0
// The errors of a command line. CLI11 parses, but its own messages are never shown.
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

// Prints UsageLine to standard error. Returns the exit code for wrong usage: 16 for fsck, like fsck(8), otherwise 2.
int FailUsage(std::string_view command, std::string_view what);
int UsageExitCode(std::string_view command);

// Explains why `app` rejected the command line `arguments` with `error`: the subcommand, if one is named, and the
// problem of the first wrong argument.
struct UsageError {
  std::string command, what;
};
UsageError DescribeUsageError(const CLI::App& app, const std::vector<std::string>& arguments,
                              const CLI::ParseError& error);

// Validators for CLI::Option::check: a size as parsed by ParseSize; a whole number within bounds; a number of `unit`
// (seconds) from 0 to `most`, which may have a fraction.
std::string CheckSize(const std::string& text);
std::function<std::string(const std::string&)> CheckNumber(uint64_t least, uint64_t most);
std::function<std::string(const std::string&)> CheckDecimal(std::string unit, double most, double least = 0);

// Makes every option of `app` and its subcommands that takes a value reject the name of another option as its value.
void RefuseOptionsAsValues(CLI::App& app);

// An example value of an option of a command for error messages, e.g. "8G" for "--size"; empty if the option is not in
// the table.
std::string_view ExampleValue(const CLI::App& command, std::string_view option);

}  // namespace weightfs::cli
