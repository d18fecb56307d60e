// SPDX-License-Identifier: Apache-2.0
// The only source that includes CLI11, whose templates take seconds to compile. It parses and prints --help; its error
// messages are never shown.
#include "cli/parser.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <span>
#include <sstream>

#include "cli/output.h"
#include "cli/usage.h"

namespace weightfs::cli {
namespace {

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

// Wraps descriptions, so that a line has at most 100 columns.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kIndent); }
  std::string make_option_desc(const CLI::Option* option) const override {
    return Wrap(CLI::Formatter::make_option_desc(option), kColumns - kIndent);
  }

 private:
  static constexpr size_t kColumns = 100, kIndent = 34;
};

void AddOption(const Command& command, const Option& option, CLI::App* app) {
  const std::string names = option.positional() ? option.value : fmt::format("{}", fmt::join(option.names, ","));
  if (option.name() == "--help") return (void)app->set_help_flag(names, option.meaning);
  if (option.name() == "--version" && option.value.empty()) {
    return (void)app->set_version_flag(names, std::string("weightfs " WEIGHTFS_VERSION), option.meaning);
  }
  CLI::Option* added = nullptr;
  if (option.value.empty()) {
    added = app->add_flag(names, *std::get<bool*>(option.target), option.meaning);
  } else {
    const auto set = [&option](const CLI::results_t& values) {
      option.Set(values);
      return true;
    };
    added = app->add_option(names, set, option.meaning);
    if (option.repeated()) added->expected(1, -1)->allow_extra_args(option.positional());
    if (!option.positional()) added->type_name(option.value);
    if (!option.fallback.empty()) added->default_str(option.fallback);
    if (option.check) added->check(option.check);
    // CLI11 takes any word behind an option as its value.
    added->check([&command, &option](const std::string& value) {
      return option.positional() || command.Find(value) == nullptr ? std::string() : NeedsValue(option.name(), option);
    });
  }
  added->required(option.required);
  if (option.hidden || !option.group.empty()) added->group(option.group);
}

void AddOptions(const Command& command, CLI::App* app) {
  for (const Option& option : command.options) AddOption(command, option, app);
  app->footer(command.footer);
}

}  // namespace

int ParseAndRun(const std::vector<Command>& commands, const std::vector<std::string>& arguments) {
  const auto named = std::ranges::find(commands, arguments.empty() ? "" : arguments.front(), &Command::name);
  if (named != commands.end() && named->run_words) return named->run_words({arguments.begin() + 1, arguments.end()});
  CLI::App app(commands.front().summary, "weightfs");
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  AddOptions(commands.front(), &app);
  for (const Command& command : std::span(commands).subspan(1)) {
    CLI::App* added = app.add_subcommand(command.name, command.summary);
    if (command.hidden) added->group("");
    AddOptions(command, added);
  }
  try {
    // CLI11 expects the vector in reverse order.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& answer) {
    return app.exit(answer);
  } catch (const CLI::ParseError& error) {
    if (arguments.empty()) {
      Print(stderr, app.help());
      return kUsage;
    }
    // The checks of values are ours, so their message can be shown.
    const bool checked = dynamic_cast<const CLI::ValidationError*>(&error) != nullptr;
    const UsageError wrong =
        DescribeUsageError(commands, arguments, checked ? error.what() : "the arguments cannot be understood");
    return FailUsage(wrong.command, wrong.what);
  }
  const std::string chosen = app.get_subcommands().front()->get_name();
  return std::ranges::find(commands, chosen, &Command::name)->run();
}

}  // namespace weightfs::cli
