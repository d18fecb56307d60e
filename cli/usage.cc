// SPDX-License-Identifier: Apache-2.0
#include "cli/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ranges>
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

// Takes an option, or the first of several flags ("-rf"). Returns whether the first of the next words is its value.
bool TakeOption(const Command& command, const std::string& word, Words next, ScannedWords* scanned) {
  const auto fail = [scanned](std::string what) {
    if (scanned->wrong.empty()) scanned->wrong = std::move(what);
    return false;
  };
  const bool is_long = word[1] == '-';
  const std::string name = word.substr(0, is_long ? word.find('=') : 2);
  const Option* option = command.Find(name);
  if (option == nullptr) return fail(fmt::format("unknown option '{}'{}", name, Guess(name, OptionNames(command))));
  ++scanned->given[option];
  const bool has_rest = word.size() > name.size();
  if (option->value.empty()) {
    if (has_rest && is_long) return fail(fmt::format("{} takes no value: '{}'", name, word));
    return has_rest && TakeOption(command, "-" + word.substr(2), next, scanned);
  }
  if (has_rest) return false;
  if (next.empty()) scanned->unfinished = option;
  const bool has_value = !next.empty() && command.Find(next.front()) == nullptr;
  if (!has_value && !option->optional_value) fail(name + " " + NeedsValue(name, *option));
  return has_value;
}

// Returns the first error, or nullopt if the words alone show none.
std::optional<std::string> FindError(const Command& command, Words words) {
  const ScannedWords scanned = ScanWords(command, words);
  if (!scanned.wrong.empty()) return scanned.wrong;
  for (const auto& [option, times] : scanned.given) {
    if (times < 2 || option->value.empty() || option->repeated()) continue;
    return fmt::format("{} is given {} times; give it once", option->name(), times);
  }
  std::string names;
  size_t known = 0;
  for (const Option& option : std::views::filter(command.options, &Option::positional)) {
    if (known++ >= scanned.arguments.size() && option.required) {
      return fmt::format("{} is missing; write e.g. '{}'", option.value, ExampleOf(command));
    }
    names += (names.empty() ? "" : " ") + option.value;
  }
  if (scanned.arguments.size() <= known) return std::nullopt;
  return fmt::format("too many arguments: '{}'; it takes {}", scanned.arguments[known], names.empty() ? "none" : names);
}

}  // namespace

ScannedWords ScanWords(const Command& command, Words words) {
  ScannedWords scanned;
  for (size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (!scanned.options_ended && word == "--") {
      scanned.options_ended = true;
    } else if (scanned.options_ended || word.size() < 2 || word[0] != '-') {
      scanned.arguments.push_back(word);
    } else if (TakeOption(command, word, words.subspan(at + 1), &scanned)) {
      ++at;
    }
  }
  return scanned;
}

int FailUsage(std::string_view command, std::string_view what) {
  Print(stderr, fmt::format("weightfs: {}{}{}; see 'weightfs {}{}--help'\n", command, command.empty() ? "" : ": ", what,
                            command, command.empty() ? "" : " "));
  return command == "fsck" ? kFsckUsage : kUsage;
}

UsageError DescribeUsageError(const std::vector<Command>& commands, const std::vector<std::string>& arguments,
                              std::string otherwise) {
  const std::string first = arguments.empty() ? "" : arguments[0];
  const auto command = std::ranges::find(commands.begin() + 1, commands.end(), first, &Command::name);
  if (command != commands.end()) {
    auto wrong = FindError(*command, std::span(arguments).subspan(1));
    return {first, wrong ? *std::move(wrong) : std::move(otherwise)};
  }
  if (first.size() > 1 && first[0] == '-') {
    auto wrong = FindError(commands.front(), std::span(arguments).first(1));
    return {"", wrong ? *std::move(wrong) : "a command must come first"};
  }
  std::vector<std::string> names;
  for (const Command& known : commands) {
    if (!known.hidden) names.push_back(known.name);
  }
  return {"", fmt::format("no command '{}'{}", first, Guess(first, names))};
}

std::string NeedsValue(std::string_view name, const Option& option) {
  return fmt::format("needs a value, e.g. {} {}", name, option.example);
}

}  // namespace weightfs::cli
