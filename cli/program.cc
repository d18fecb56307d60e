// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

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

int RunCommand(const Command& command, std::span<const std::string> words) {
  if (command.run_words) return command.run_words({words.begin(), words.end()});
  const ScannedWords scanned = ScanWords(command, words);
  if (scanned.given.contains(command.Find("--help"))) {
    Print(stdout, HelpOf(command));
    return kSuccess;
  }
  const std::string wrong = SetTargets(command, scanned);
  if (!wrong.empty()) return FailUsage(command.name, wrong);
  const auto code = command.run();
  return code ? *code : Fail(code.error(), command.name == "verify" ? kFsckOperationalError : kFailure);
}

int Run(std::span<const Command> commands, std::span<const std::string> words) {
  const Command& program = commands.front();
  const auto subcommands = commands.subspan(1);
  const std::string first = words.empty() ? "--help" : words.front();
  const auto named = std::ranges::find(subcommands, first, &Command::name);
  if (named != subcommands.end()) return RunCommand(*named, words.subspan(1));
  if (first.size() > 1 && first[0] == '-') {
    const ScannedWords scanned = ScanWords(program, {&first, 1});
    if (scanned.given.contains(program.Find("--help"))) {
      Print(words.empty() ? stderr : stdout, HelpOf(program, subcommands));
      return words.empty() ? kUsage : kSuccess;
    }
    if (scanned.given.contains(program.Find("--version"))) {
      Print(stdout, "weightfs " WEIGHTFS_VERSION "\n");
      return kSuccess;
    }
    return FailUsage("", scanned.wrong.empty() ? "a command must come first" : scanned.wrong);
  }
  std::vector<std::string> names;
  for (const Command& one : subcommands) {
    if (!one.hidden) names.push_back(one.name);
  }
  return FailUsage("", fmt::format("no command '{}'{}", first, Guess(first, names)));
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

int RunProgram(const std::vector<std::string>& arguments) {
  const std::vector<std::string> words = TranslateOldName(AskedForHelp(arguments));
  const int exit_code = Run(MakeCommands(), words);
  const auto flushed = FlushOutput();
  if (flushed.has_value()) return exit_code;
  const bool adds_codes = !words.empty() && words[0] == "verify";
  return Fail(flushed.error(), adds_codes ? exit_code | kFsckOperationalError : std::max(exit_code, kFailure));
}

}  // namespace weightfs::cli
