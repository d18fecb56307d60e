// SPDX-License-Identifier: Apache-2.0
#include "cli/command_tree.h"

#include <nlohmann/json.hpp>
#include <string_view>

namespace weightfs::cli {
namespace {

// The words of --help for the values that a shell can complete. A path may be a directory, but a file completes both.
ValueKind KindOf(std::string_view value) {
  if (value.empty()) return ValueKind::kNone;
  if (value == "STORE" || value == "DIR") return ValueKind::kDirectory;
  if (value == "FILE" || value == "FILE.html" || value == "PATH") return ValueKind::kFile;
  return value == "OPTIONS" ? ValueKind::kMountOptions : ValueKind::kText;
}

OptionEntry DescribeOption(const CLI::Option& option) {
  OptionEntry entry;
  for (const std::string& name : option.get_snames()) entry.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) entry.names.push_back("--" + name);
  const bool takes_value = option.get_items_expected_max() > 0;
  if (option.get_positional()) {
    entry.value = option.get_name(true);
  } else if (takes_value) {
    // The type may be followed by the descriptions of validators.
    const std::string type = option.get_type_name();
    entry.value = type.substr(0, type.find(':'));
  }
  entry.kind = KindOf(entry.value);
  entry.optional_value = takes_value && option.get_items_expected_min() == 0;
  // The default of an option with an optional value is that of a missing value.
  if (takes_value && !entry.optional_value) entry.fallback = option.get_default_str();
  entry.meaning = option.get_description();
  entry.required = option.get_required();
  // An option that takes one value at a time may be given again if its values are collected.
  entry.repeated = option.get_items_expected_max() > 1;
  return entry;
}

CommandEntry DescribeCommand(const CLI::App& command, std::string name) {
  CommandEntry entry{std::move(name), command.get_description(), command.get_footer(), {}};
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_group().empty()) entry.options.push_back(DescribeOption(*option));
  }
  return entry;
}

}  // namespace

std::vector<CommandEntry> DescribeCommands(const CLI::App& app) {
  std::vector<CommandEntry> commands = {DescribeCommand(app, "")};
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) commands.push_back(DescribeCommand(*command, command->get_name()));
  }
  return commands;
}

CommandEntry ParseCommand(const std::string& json) {
  const auto command = nlohmann::json::parse(json);
  CommandEntry entry{command.at("name"), command.at("summary"), command.at("footer"), {}};
  for (const auto& described : command.at("options")) {
    OptionEntry option{described.at("names"), described.at("value"), {}, described.at("meaning")};
    option.kind = KindOf(option.value);
    option.optional_value = described.at("optional_value");
    option.repeated = described.at("repeated");
    entry.options.push_back(std::move(option));
  }
  return entry;
}

}  // namespace weightfs::cli
