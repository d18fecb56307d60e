// SPDX-License-Identifier: Apache-2.0
// A command as data: its name, its options, and the function that runs it. Every command declares itself with this;
// the parser, --help, the man pages, the completions and the errors of a command line read it.
#pragma once

#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "common/result.h"

namespace weightfs::cli {

// What a shell completes as the value of an option or as an argument.
enum class ValueKind : unsigned char { kNone, kText, kFile, kDirectory, kMountOptions };

// Returns the problem of a value, or an empty string.
using ValueCheck = std::function<std::string(const std::string& value)>;

// The variable that an option sets. An option of a vector may be repeated, and adds one value each time. A positional
// argument of a vector is the only one of its command.
using Target = std::variant<bool*, std::string*, std::optional<std::string>*, std::vector<std::string>*, uint64_t*,
                            std::optional<uint64_t>*, double*>;

struct Option {
  std::vector<std::string> names;  // "-f", "--foreground"; empty for a positional argument
  std::string value;               // "SIZE", or the name of a positional argument; empty for a flag
  std::string meaning;
  std::string example;   // a value for error messages
  std::string fallback;  // the value if the option is not given; often empty
  std::string group;     // its heading in --help, if it is not one of the general options
  Target target;         // a null pointer: the parser answers the option
  ValueCheck check = {};
  ValueKind kind = ValueKind::kNone;
  bool optional_value = false;  // only for a command with `run_words`
  bool required = false;
  bool hidden = false;  // from the documents: for tests and other programs

  bool positional() const { return names.empty(); }
  bool repeated() const { return std::holds_alternative<std::vector<std::string>*>(target); }
  // "--foreground" or, without a long name, "-f"; "STORE" for a positional argument.
  const std::string& name() const { return positional() ? value : names.back(); }
  // Sets the target to values that `check` accepts.
  void Set(const std::vector<std::string>& values) const;
};

struct Command {
  std::string name;     // "format"; empty for the program itself
  std::string summary;  // one line
  std::string footer;   // the text of --help below the options
  std::vector<Option> options;
  std::function<Result<int>()> run;  // returns the exit code; owns the targets of the options
  // Instead of `run`, for a command that parses the words behind its name itself.
  std::function<int(const std::vector<std::string>& words)> run_words;
  std::string group;  // of the options that are added from now on
  bool hidden = false;

  // Begins with the option --help.
  Command(std::string of_name, std::string of_summary);

  // Adds an option, written as in a synopsis: "-f,--foreground" with the short name first, "--size SIZE",
  // "--json [FILE]", "STORE", "[STORE]". An option with a value needs an example. The reference is valid until the
  // next call.
  Option& Add(std::string_view synopsis, Target target, std::string meaning, std::string example = {});
  // The same, for a size as parsed by ParseSize; a whole number; and a number of the unit that the value is named by
  // ("SECONDS"), which may have a fraction.
  Option& AddSize(std::string_view synopsis, std::string* target, std::string meaning, std::string example);
  Option& AddNumber(std::string_view synopsis, Target target, std::string meaning, std::string example,
                    uint64_t least = 1, uint64_t most = INT64_MAX);
  Option& AddDecimal(std::string_view synopsis, double* target, std::string meaning, std::string example, double most,
                     double least = 0);

  // The option with this name, with its dashes, or null.
  const Option* Find(std::string_view name) const;
};

// Checks of values: a whole number within bounds; a number of `unit` (seconds), which may have a fraction.
ValueCheck CheckNumber(uint64_t least, uint64_t most);
ValueCheck CheckDecimal(std::string unit, double most, double least = 0);

}  // namespace weightfs::cli
