// SPDX-License-Identifier: Apache-2.0
#include "cli/help/usage.h"

#include <fmt/format.h>

#include <algorithm>
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

std::string Guess(std::string_view word, const std::vector<std::string>& known) {
  const std::string_view meant = NearestName(word, known);
  return meant.empty() ? std::string() : fmt::format(" (did you mean '{}'?)", meant);
}

// The first example in the footer of a command's help.
std::string ExampleOf(const Command& command) {
  const size_t begin = command.footer.find("  weightfs ");
  if (begin == std::string::npos) return {};
  return command.footer.substr(begin + 2, command.footer.find('\n', begin) - begin - 2);
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
  scanned->given.insert(option);
  const bool has_rest = word.size() > name.size();
  if (option->value.empty()) {
    if (has_rest && is_long) return fail(fmt::format("{} takes no value: '{}'", name, word));
    return has_rest && TakeOption(command, "-" + word.substr(2), next, scanned);
  }
  if (!has_rest && next.empty()) scanned->unfinished = option;
  const std::string rest = has_rest ? word.substr(name.size() + (is_long ? 1 : 0)) : "";
  // The name of an option is no value, and CLI11 takes no empty one behind '='.
  if (!rest.empty() && command.Find(rest) == nullptr) return false;
  if (!has_rest && !next.empty() && command.Find(next.front()) == nullptr) return true;
  return !option->optional_value && fail(fmt::format("{0} needs a value, e.g. {0} {1}", name, option->example));
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
  Print(stderr, "weightfs: {}{}{}; see 'weightfs {}{}--help'\n", command, command.empty() ? "" : ": ", what, command,
        command.empty() ? "" : " ");
  return command == "verify" ? kFsckUsage : kUsage;
}

std::string FindError(const Command& command, Words words) {
  const ScannedWords scanned = ScanWords(command, words);
  if (!scanned.wrong.empty()) return scanned.wrong;
  std::string names, missing;
  size_t left = scanned.arguments.size();
  for (const Option& option : command.options) {
    size_t times = scanned.given.count(&option);
    if (option.positional()) {
      names += (names.empty() ? "" : " ") + option.value;
      times = option.repeated() ? left : std::min<size_t>(left, 1);
      left -= times;
    }
    if (times == 0 && option.required && missing.empty()) missing = option.name();
    if (times > 1 && !option.value.empty() && !option.repeated()) {
      return fmt::format("{} is given {} times; give it once", option.name(), times);
    }
  }
  if (left > 0) {
    const std::string& extra = scanned.arguments[scanned.arguments.size() - left];
    return fmt::format("too many arguments: '{}'; it takes {}", extra, names.empty() ? "none" : names);
  }
  return missing.empty() ? "" : fmt::format("{} is missing; write e.g. '{}'", missing, ExampleOf(command));
}

std::string FindError(std::span<const Command> commands, const std::string& first) {
  if (first.size() > 1 && first[0] == '-') {
    const std::string wrong = ScanWords(commands.front(), {&first, 1}).wrong;
    return wrong.empty() ? "a command must come first" : wrong;
  }
  std::vector<std::string> names;
  for (const Command& one : commands.subspan(1)) {
    if (!one.hidden) names.push_back(one.name);
  }
  return fmt::format("no command '{}'{}", first, Guess(first, names));
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
