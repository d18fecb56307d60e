// SPDX-License-Identifier: Apache-2.0
#include "cli/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "cli/output.h"
#include "common/nearest_name.h"

namespace weightfs::cli {
namespace {

using Words = std::span<const std::string>;

// The names of the options, with their dashes: the long ones of an option first.
std::vector<std::string> OptionNames(const Command& command) {
  std::vector<std::string> names;
  for (const Option& option : command.options) names.insert(names.end(), option.names.rbegin(), option.names.rend());
  return names;
}

std::vector<std::string> CommandNames(std::span<const Command> commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.name);
  return names;
}

std::string Guess(std::string_view word, const std::vector<std::string>& known) {
  const std::string_view meant = NearestName(word, known);
  return meant.empty() ? std::string() : fmt::format(" (did you mean '{}'?)", meant);
}

// The first example in the footer of a command's help.
std::string ExampleOf(const Command& command) {
  const std::string& footer = command.footer;
  const size_t begin = footer.find("  weightfs ");
  if (begin == std::string::npos) return {};
  return footer.substr(begin + 2, footer.find('\n', begin) - begin - 2);
}

// Parses the words after a command the same way as CLI11.
class Scan {
 public:
  explicit Scan(const Command& command) : command_(command) {}

  // Returns the first error, or nullopt if the words alone show none.
  std::optional<std::string> Find(Words words) {
    bool only_positionals = false;
    for (size_t at = 0; at < words.size(); ++at) {
      const std::string& word = words[at];
      if (!only_positionals && word == "--") {
        only_positionals = true;
      } else if (only_positionals || word.size() < 2 || word[0] != '-') {
        positionals_.push_back(word);
      } else if (auto wrong = TakeOption(word, words, &at)) {
        return wrong;
      }
    }
    if (auto wrong = CheckRepeated()) return wrong;
    return CheckPositionals();
  }

 private:
  std::optional<std::string> TakeOption(const std::string& word, Words words, size_t* at) {
    const bool is_long = word[1] == '-';
    const size_t equals = is_long ? word.find('=') : std::string::npos;
    const std::string name = is_long ? word.substr(0, equals) : word.substr(0, 2);
    const Option* option = command_.Find(name);
    if (option == nullptr) {
      return fmt::format("unknown option '{}'{}", name, Guess(name, OptionNames(command_)));
    }
    ++seen_[option];
    const bool has_rest = is_long ? equals != std::string::npos : word.size() > 2;
    if (option->value.empty()) {
      if (!has_rest) return std::nullopt;
      if (!is_long) return TakeOption("-" + word.substr(2), words, at);  // "-rf"
      return fmt::format("{} takes no value: '{}'", name, word);
    }
    if (has_rest) return std::nullopt;
    const bool has_next = *at + 1 < words.size() && command_.Find(words[*at + 1]) == nullptr;
    if (!has_next && !option->optional_value) return name + " " + NeedsValue(name, *option);
    if (has_next) ++*at;
    return std::nullopt;
  }

  std::optional<std::string> CheckRepeated() const {
    for (const auto& [option, times] : seen_) {
      if (times < 2 || option->value.empty() || option->repeated()) continue;
      return fmt::format("{} is given {} times; give it once", option->name(), times);
    }
    return std::nullopt;
  }

  std::optional<std::string> CheckPositionals() const {
    std::vector<const Option*> known;
    for (const Option& option : command_.options) {
      if (option.positional()) known.push_back(&option);
    }
    for (size_t at = positionals_.size(); at < known.size(); ++at) {
      if (!known[at]->required) continue;
      return fmt::format("{} is missing; write e.g. '{}'", known[at]->value, ExampleOf(command_));
    }
    if (positionals_.size() <= known.size()) return std::nullopt;
    std::string names;
    for (const Option* option : known) names += (names.empty() ? "" : " ") + option->value;
    return fmt::format("too many arguments: '{}'; it takes {}", positionals_[known.size()],
                       names.empty() ? "none" : names);
  }

  const Command& command_;
  std::vector<std::string> positionals_;
  std::map<const Option*, unsigned> seen_;
};

}  // namespace

std::string UsageLine(std::string_view command, std::string_view what) {
  return fmt::format("weightfs: {}{}{}; see 'weightfs {}{}--help'", command, command.empty() ? "" : ": ", what, command,
                     command.empty() ? "" : " ");
}

int UsageExitCode(std::string_view command) { return command == "fsck" ? kFsckUsage : kUsage; }

int FailUsage(std::string_view command, std::string_view what) {
  Print(stderr, UsageLine(command, what) + "\n");
  return UsageExitCode(command);
}

UsageError DescribeUsageError(const std::vector<Command>& commands, const std::vector<std::string>& arguments,
                              std::string otherwise) {
  const std::string first = arguments.empty() ? "" : arguments[0];
  const auto known = std::span(commands).subspan(1);
  const auto command = std::ranges::find(known, first, &Command::name);
  if (command != known.end()) {
    auto wrong = Scan(*command).Find(std::span(arguments).subspan(1));
    return {first, wrong ? *std::move(wrong) : std::move(otherwise)};
  }
  if (first.size() > 1 && first[0] == '-') {
    auto wrong = Scan(commands.front()).Find(std::span(arguments).first(1));
    return {"", wrong ? *std::move(wrong) : "a command must come first"};
  }
  return {"", fmt::format("no command '{}'{}", first, Guess(first, CommandNames(known)))};
}

std::string NeedsValue(std::string_view name, const Option& option) {
  return fmt::format("needs a value, e.g. {} {}", name, option.example);
}

}  // namespace weightfs::cli
