// SPDX-License-Identifier: Apache-2.0
// The commands and options of the program as data, for the man pages and the completions.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace weightfs::cli {

// What a shell completes as the value of an option or as an argument.
enum class ValueKind : unsigned char { kNone, kText, kFile, kDirectory, kMountOptions };

struct OptionEntry {
  std::vector<std::string> names;  // "-f", "--foreground"; empty for a positional argument
  std::string value;               // "SIZE", or the name of a positional argument; empty for a flag
  std::string fallback;            // the value if the option is not given; often empty
  std::string meaning;
  ValueKind kind = ValueKind::kNone;
  bool optional_value = false;
  bool required = false;
  bool repeated = false;

  bool positional() const { return names.empty(); }
};

struct CommandEntry {
  std::string name;     // "format"; empty for the program itself
  std::string summary;  // one line
  std::string footer;   // the text of --help below the options
  std::vector<OptionEntry> options;
};

// The program itself, then its commands in the order of --help, without those that --help hides.
std::vector<CommandEntry> DescribeCommands(const CLI::App& app);

// A command that another program describes (bench/options.py, describe).
CommandEntry ParseCommand(const std::string& json);

}  // namespace weightfs::cli
