// SPDX-License-Identifier: Apache-2.0
// Completion of the command line in shells. The scripts in cli/help/shells/ run `weightfs __complete WORD...`.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <ranges>

#include "cli/commands.h"
#include "cli/help/usage.h"
#include "cli/output.h"
#include "cli/program.h"
#include "fs/kernel_features.h"
#include "fs/mount_options.h"

namespace weightfs::cli {
namespace {

// "auto|never" lists two values; in "DAYS|off" only "off" is one, and the word in capitals is a description.
std::vector<std::string_view> ValuesOf(const MountOptionHelp& option) {
  if (option.name == "without") return KnownFeatures();
  std::vector<std::string_view> values;
  if (option.value.find('|') == std::string_view::npos) return values;
  for (const auto part : std::views::split(option.value, '|')) {
    const std::string_view value(part.begin(), part.end());
    if (std::islower(static_cast<unsigned char>(value.front())) != 0) values.push_back(value);
  }
  return values;
}

// The last option of the list `text`, which is separated by commas: its names or, behind '=', its values.
std::string CompleteMountOptions(std::string_view text) {
  const std::string_view item = text.substr(text.rfind(',') + 1);
  const std::string_view before = text.substr(0, text.size() - item.size());
  const bool has_name = item.find('=') != std::string_view::npos;
  std::string answer = "list\n";
  for (const MountOptionHelp& option : DescribeMountOptions()) {
    const std::string name = fmt::format("{}{}{}", before, option.name, option.value.empty() ? "" : "=");
    const bool is_named = has_name && item.substr(0, item.find('=')) == option.name;
    const auto values = is_named ? ValuesOf(option) : std::vector<std::string_view>(has_name ? 0 : 1);
    for (const std::string_view value : values) answer += fmt::format("{}{}\t{}\n", name, value, option.meaning);
  }
  for (const std::string_view name : KernelMountOptions()) {
    if (!has_name) answer += fmt::format("{}{}\toption of the kernel\n", before, name);
  }
  return answer;
}

std::string CompleteOptions(const Command& command, const ScannedWords& scanned) {
  std::string answer = "word\n";
  for (const Option& option : command.options) {
    if (option.hidden || (scanned.given.contains(&option) && !option.repeated())) continue;
    for (const std::string& name : option.names) answer += fmt::format("{}\t{}\n", name, option.meaning);
  }
  return answer;
}

std::string CompleteValue(const Option* option, std::string_view text) {
  switch (option == nullptr ? ValueKind::kNone : option->kind) {
    case ValueKind::kNone:
    case ValueKind::kText: break;
    case ValueKind::kFile: return "file\n";
    case ValueKind::kDirectory: return "directory\n";
    case ValueKind::kMountOptions: return CompleteMountOptions(text);
  }
  return "word\n";
}

// The answer for the words behind the program's name, of which the last one is incomplete. The first line says what
// completes it: "file" or "directory" (the value behind --NAME=, if the word has one), "list" (the words below, without
// a space behind them), or "word". Each further line is a word and its meaning, separated by a tab; the shell selects
// those that match.
std::string Complete(std::span<const Command> commands, std::span<const std::string> words) {
  const std::string last = words.empty() ? "" : words.back();
  if (words.size() < 2 && last.starts_with('-')) return CompleteOptions(commands.front(), {});
  std::string answer = "word\n";
  if (words.size() < 2) {
    for (const Command& command : commands.subspan(1)) {
      if (!command.hidden) answer += fmt::format("{}\t{}\n", command.name, command.summary);
    }
    return answer;
  }
  const auto command = std::ranges::find(commands, words.front(), &Command::name);
  if (command == commands.end()) return answer;
  const ScannedWords scanned = ScanWords(*command, words.subspan(1, words.size() - 2));
  if (!scanned.options_ended && last.starts_with('-')) {
    const size_t equals = last.starts_with("--") ? last.find('=') : std::string::npos;
    if (equals == std::string::npos) return CompleteOptions(*command, scanned);
    return CompleteValue(command->Find(last.substr(0, equals)), last);
  }
  const Option* option = scanned.unfinished;
  size_t position = 0;
  for (const Option& argument : command->options) {
    if (option != nullptr || !argument.positional()) continue;
    if (position++ == scanned.arguments.size() || argument.repeated()) option = &argument;
  }
  return CompleteValue(option, last);
}

}  // namespace

Command CompleteCommand() {
  Command command("__complete", "");
  command.hidden = true;
  command.run_words = [](const std::vector<std::string>& words) {
    std::vector<Command> commands = MakeCommands();
    const auto bench = std::ranges::find(commands, "bench", &Command::name);
    if (!words.empty() && words.front() == bench->name) *bench = DescribeBench();
    Print(stdout, Complete(commands, words));
    return kSuccess;
  };
  return command;
}

}  // namespace weightfs::cli
