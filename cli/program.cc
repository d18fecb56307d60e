// SPDX-License-Identifier: Apache-2.0
// The only source that includes CLI11, whose templates take seconds to compile. It parses and prints --help; its error
// messages are never shown.
#include "cli/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "cli/help/usage.h"
#include "cli/names.h"
#include "cli/output.h"

namespace weightfs::cli {
namespace {

constexpr const char* kFooter =
    "Start here:\n"
    "  weightfs format /srv/tensors --size 8G     create a store\n"
    "  weightfs mount /srv/tensors /mnt/tensors   use it like any directory\n"
    "  weightfs info /mnt/tensors/model.pt        show where a file is on the device\n"
    "  weightfs umount /mnt/tensors               write everything to the device and unmount\n\n"
    "'weightfs COMMAND --help' explains a command; 'weightfs doctor' checks this machine.";

// "help COMMAND" is "COMMAND --help".
std::vector<std::string> AskedForHelp(std::vector<std::string> arguments) {
  if (arguments.empty() || arguments[0] != "help" || arguments.size() > 2) return arguments;
  arguments.erase(arguments.begin());
  arguments.emplace_back("--help");
  return arguments;
}

// Formats a line like those of the footers.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return HelpEntry(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return HelpEntry(command->get_name(), command->get_description());
  }
};

void AddOption(const Option& option, CLI::App* app) {
  const std::string names = option.positional() ? option.value : fmt::format("{}", fmt::join(option.names, ","));
  if (option.name() == "--help") return (void)app->set_help_flag(names, option.meaning);
  if (option.name() == "--version" && option.value.empty()) {
    return (void)app->set_version_flag(names, std::string("weightfs " WEIGHTFS_VERSION), option.meaning);
  }
  CLI::Option* added = nullptr;
  if (option.value.empty()) {
    added = app->add_flag(names, *std::get<bool*>(option.target), option.meaning);
  } else {
    const auto set = [&option](const CLI::results_t& values) { return option.Set(values), true; };
    added = app->add_option(names, set, option.meaning);
    if (option.repeated()) added->expected(1, -1)->allow_extra_args(option.positional());
    if (!option.positional()) added->type_name(option.value);
    if (!option.fallback.empty()) added->default_str(option.fallback);
    if (option.check) added->check(option.check);
  }
  added->required(option.required);
  if (option.hidden || !option.group.empty()) added->group(option.hidden ? "" : option.group);
}

}  // namespace

std::vector<Command> MakeCommands() {
  Command program("", "weightfs: a filesystem that stores tensors");
  program.Add("-V,--version", {}, "Display program version information and exit");
  program.footer = kFooter;
  return {program,        FormatCommand(),      MountCommand(),   UmountCommand(), InfoCommand(),   PublishCommand(),
          VerifyCommand(), RecoverCommand(),     DoctorCommand(),  StatsCommand(),  PushCommand(),   PullCommand(),
          VersionsCommand(), PruneCommand(),     BenchCommand(),   BenchWorkerCommand(), CompleteCommand()};
}

int ParseAndRun(const std::vector<Command>& commands, const std::vector<std::string>& arguments) {
  const std::string first = arguments.empty() ? "" : arguments.front();
  const auto named = std::ranges::find(commands.begin() + 1, commands.end(), first, &Command::name);
  const bool found = named != commands.end();
  const Command& command = found ? *named : commands.front();
  std::vector<std::string> words(arguments.begin() + (found ? 1 : 0), arguments.end());
  if (!found && !words.empty()) words.resize(1);  // an option of the program, or an error
  if (command.run_words) return command.run_words(words);
  CLI::App app(command.summary, found ? "weightfs " + command.name : "weightfs");
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(command.footer);
  for (const Option& option : command.options) AddOption(option, &app);
  if (!found) app.require_subcommand(1);
  for (const Command& one : std::span(commands).subspan(found ? commands.size() : 1)) {
    app.add_subcommand(one.name, one.summary)->group(one.hidden ? "" : "Subcommands");
  }
  if (arguments.empty()) return Print(stderr, app.help()), kUsage;
  // CLI11 takes "--force=true" for the flag, "---force" for an argument, and any word behind an option for its value.
  std::string wrong = found ? FindError(command, words) : FindError(commands, first);
  try {
    // CLI11 expects the vector in reverse order.
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::Success& answer) {
    return app.exit(answer);
  } catch (const CLI::ParseError& error) {
    if (app.get_help_ptr()->count() > 0) return Print(stdout, app.help()), kSuccess;
    // The checks of values are ours, so their message can be shown.
    const bool checked = dynamic_cast<const CLI::ValidationError*>(&error) != nullptr;
    if (wrong.empty()) wrong = checked ? error.what() : "the arguments cannot be understood";
  }
  if (!wrong.empty()) return FailUsage(command.name, wrong);
  for (const Option& option : command.options) {
    // CLI11 splits an argument "[a,b]".
    if (option.positional() && option.repeated()) option.Set(ScanWords(command, words).arguments);
  }
  const auto code = command.run();
  return code ? *code : Fail(code.error(), command.name == "verify" ? kFsckOperationalError : kFailure);
}

int RunProgram(const std::vector<std::string>& arguments) {
  const std::vector<std::string> words = TranslateOldName(AskedForHelp(arguments));
  const int exit_code = ParseAndRun(MakeCommands(), words);
  const auto flushed = FlushOutput();
  if (flushed.has_value()) return exit_code;
  const bool adds_codes = !words.empty() && words[0] == "verify";
  return Fail(flushed.error(), adds_codes ? exit_code | kFsckOperationalError : std::max(exit_code, kFailure));
}

}  // namespace weightfs::cli
