// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <fmt/ranges.h>

#include <algorithm>

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

std::string HelpText(const Command& command, std::span<const Command> subcommands) {
  std::string text = fmt::format("{}\nUsage: weightfs{}{} [OPTIONS]", command.summary, command.name.empty() ? "" : " ",
                                 command.name);
  std::vector<std::string> groups = {""};
  for (const Option& option : command.options) {
    const std::string name = option.value + (option.repeated() ? "..." : "");
    if (option.positional()) text += option.required ? " " + name : " [" + name + "]";
    if (option.group != groups.back()) groups.push_back(option.group);
  }
  text += subcommands.empty() ? "\n" : " SUBCOMMAND\n";
  const auto add = [&](std::string_view title, bool positional, const std::string& group) {
    std::string entries;
    for (const Option& option : command.options) {
      if (option.hidden || option.positional() != positional || option.group != group) continue;
      const std::string value = option.value + (option.fallback.empty() ? "" : "=" + option.fallback);
      entries += HelpEntry(fmt::format("{}{}{}{}{}", fmt::join(option.names, ","),
                                       positional || value.empty() ? "" : " ", value, option.repeated() ? " ..." : "",
                                       option.required ? " REQUIRED" : ""),
                           option.meaning);
    }
    if (!entries.empty()) text += fmt::format("\n{}:\n{}", title, entries);
  };
  add("Positionals", /*positional=*/true, "");
  for (const std::string& group : groups) add(group.empty() ? "Options" : group, /*positional=*/false, group);
  if (!subcommands.empty()) text += "\nSubcommands:\n";
  for (const Command& one : subcommands) {
    if (!one.hidden) text += HelpEntry(one.name, one.summary);
  }
  return fmt::format("{}\n{}\n", text, command.footer);
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
  const auto help = [&] { return HelpText(command, std::span(commands).subspan(found ? commands.size() : 1)); };
  if (arguments.empty()) return Print(stderr, help()), kUsage;
  const ScannedWords scanned = ScanWords(command, words);
  if (scanned.given.contains(command.Find("--help"))) return Print(stdout, help()), kSuccess;
  if (!found && scanned.wrong.empty() && scanned.given.contains(command.Find("--version"))) {
    return Print(stdout, "weightfs " WEIGHTFS_VERSION "\n"), kSuccess;
  }
  const std::string wrong = found ? FindError(command, scanned) : FindError(commands, first);
  if (!wrong.empty()) return FailUsage(command.name, wrong);
  for (const Option& option : command.options) {
    if (const auto given = scanned.given.find(&option); given != scanned.given.end()) option.Set(given->second);
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
