// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <algorithm>

#include "cli/commands.h"
#include "cli/names.h"
#include "cli/output.h"
#include "cli/parser.h"

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
  const int exit_code = ParseAndRun(MakeCommands(), words);
  const auto flushed = FlushOutput();
  if (flushed.has_value()) return exit_code;
  const bool adds_codes = !words.empty() && words[0] == "verify";
  return Fail(flushed.error(), adds_codes ? exit_code | kFsckOperationalError : std::max(exit_code, kFailure));
}

}  // namespace weightfs::cli
