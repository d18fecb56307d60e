// SPDX-License-Identifier: Apache-2.0
#include "cli/help/usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <sstream>
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
  std::vector<std::string>& values = scanned->given[option];
  const bool has_rest = word.size() > name.size();
  if (option->value.empty()) {
    values.emplace_back();
    if (has_rest && is_long) return fail(fmt::format("{} takes no value: '{}'", name, word));
    return has_rest && TakeOption(command, "-" + word.substr(2), next, scanned);
  }
  std::optional<std::string> value;
  if (has_rest) {
    value = word.substr(name.size() + (is_long ? 1 : 0));
  } else if (!next.empty()) {
    value = next.front();
  } else {
    scanned->unfinished = option;
  }
  // The name of an option is no value.
  if (value && command.Find(*value) == nullptr) {
    values.push_back(*std::move(value));
    return !has_rest;
  }
  if (option->optional_value) return false;
  return fail(fmt::format("{0} needs a value, e.g. {0} {1}", name, option->example));
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
  return command == "verify" ? kFsckUsage : kUsage;
}

std::string SetTargets(const Command& command, const ScannedWords& scanned) {
  if (!scanned.wrong.empty()) return scanned.wrong;
  std::map<const Option*, std::vector<std::string>> set = scanned.given;
  std::string names, missing;
  auto argument = scanned.arguments.begin();
  for (const Option& option : command.options) {
    if (option.positional()) {
      names += (names.empty() ? "" : " ") + option.value;
      const auto left = scanned.arguments.end() - argument;
      const auto end = argument + (option.repeated() ? left : std::min<std::ptrdiff_t>(left, 1));
      if (argument != end) set[&option] = {argument, end};
      argument = end;
    }
    const auto given = set.find(&option);
    if (given == set.end()) {
      if (option.required && missing.empty()) missing = option.name();
    } else if (given->second.size() > 1 && !option.value.empty() && !option.repeated()) {
      return fmt::format("{} is given {} times; give it once", option.name(), given->second.size());
    }
  }
  if (argument != scanned.arguments.end()) {
    return fmt::format("too many arguments: '{}'; it takes {}", *argument, names.empty() ? "none" : names);
  }
  if (!missing.empty()) return fmt::format("{} is missing; write e.g. '{}'", missing, ExampleOf(command));
  for (const auto& [option, values] : set) {
    for (const std::string& value : values) {
      const std::string wrong = option->check ? option->check(value) : std::string();
      if (!wrong.empty()) return fmt::format("{}: {}", option->name(), wrong);
    }
  }
  for (const auto& [option, values] : set) option->Set(values);
  return {};
}

std::string Guess(std::string_view word, const std::vector<std::string>& known) {
  const std::string_view meant = NearestName(word, known);
  return meant.empty() ? std::string() : fmt::format(" (did you mean '{}'?)", meant);
}

std::string HelpOf(const Command& command, std::span<const Command> subcommands) {
  std::string usage = command.name.empty() ? "weightfs COMMAND" : "weightfs " + command.name;
  std::vector<std::pair<std::string, std::string>> sections = {{"Positionals", ""}, {"Options", ""}};
  for (const Option& option : command.options) {
    if (option.hidden) continue;
    const std::string shown = option.value + (option.repeated() ? "..." : "");
    if (option.positional()) usage += option.required ? " " + shown : fmt::format(" [{}]", shown);
    const std::string group = option.positional() ? "Positionals" : option.group.empty() ? "Options" : option.group;
    if (sections.back().first != group && group == option.group) sections.emplace_back(group, "");
    const std::string head = fmt::format("{}{}{}", fmt::join(option.names, ","),
                                         option.positional() || option.value.empty() ? "" : " ", option.value);
    const std::string fallback = option.fallback.empty() ? "" : fmt::format(" (default: {})", option.fallback);
    std::ranges::find(sections, group, &std::pair<std::string, std::string>::first)->second +=
        HelpEntry(head, option.meaning + fallback);
  }
  if (!subcommands.empty()) sections.emplace_back("Subcommands", "");
  for (const Command& one : subcommands) {
    if (!one.hidden) sections.back().second += HelpEntry(one.name, one.summary);
  }
  std::string text = fmt::format("{}\nUsage: {} [OPTIONS]\n", command.summary, usage);
  for (const auto& [title, entries] : sections) {
    if (!entries.empty()) text += fmt::format("\n{}:\n{}", title, entries);
  }
  return text + (command.footer.empty() ? "" : "\n" + command.footer + "\n");
}

std::string HelpEntry(std::string_view name, const std::string& meaning) {
  constexpr size_t kColumns = 100, kIndent = 34;
  std::string text = fmt::format("  {:<{}}", name, kIndent - 2);
  if (name.size() + 3 > kIndent) text += fmt::format("\n{:{}}", "", kIndent);
  for (const char letter : Wrap(meaning, kColumns - kIndent)) {
    text += letter;
    if (letter == '\n') text.append(kIndent, ' ');
  }
  return text + "\n";
}

std::string Wrap(const std::string& text, size_t columns) {
  std::string wrapped, line;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!line.empty() && TextWidth(line) + 1 + TextWidth(word) > columns) {
      wrapped += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return wrapped + line;
}

}  // namespace weightfs::cli
