// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <algorithm>
#include <sstream>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/usage.h"

namespace weightfs::cli {
namespace {

constexpr const char* kFooter =
    "Start here:\n"
    "  weightfs format /srv/tensors --size 8G     create a store\n"
    "  weightfs mount /srv/tensors /mnt/tensors   use it like any directory\n"
    "  weightfs info /mnt/tensors/model.pt        show where a file is on the device\n"
    "  weightfs umount /mnt/tensors               write everything to the device and unmount\n\n"
    "'weightfs COMMAND --help' explains a command; 'weightfs doctor' checks this machine.";

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

}  // namespace

std::unique_ptr<CLI::App> MakeApp(int* exit_code) {
  auto app = std::make_unique<CLI::App>("weightfs: a filesystem that stores tensors", "weightfs");
  app->set_version_flag("-V,--version", std::string("weightfs ") + WEIGHTFS_VERSION);
  app->require_subcommand(1);
  app->footer(kFooter);
  app->formatter(std::make_shared<HelpFormatter>());
  AddFormat(*app, exit_code);
  AddMount(*app, exit_code);
  AddUmount(*app, exit_code);
  AddFsck(*app, exit_code);
  AddRecover(*app, exit_code);
  AddScrub(*app, exit_code);
  AddVerify(*app, exit_code);
  AddInfo(*app, exit_code);
  AddPublish(*app, exit_code);
  AddUnpublish(*app, exit_code);
  AddPush(*app, exit_code);
  AddPull(*app, exit_code);
  AddVersions(*app, exit_code);
  AddPrune(*app, exit_code);
  AddStats(*app, exit_code);
  AddTop(*app, exit_code);
  AddDoctor(*app, exit_code);
  AddBench(*app, exit_code);
  RefuseOptionsAsValues(*app);
  return app;
}

namespace {

// "help COMMAND" is "COMMAND --help".
std::vector<std::string> AskedForHelp(std::vector<std::string> arguments) {
  if (arguments.empty() || arguments[0] != "help" || arguments.size() > 2) return arguments;
  arguments.erase(arguments.begin());
  arguments.emplace_back("--help");
  return arguments;
}

// Runs the command named by `words` and returns its exit code.
int RunCommand(const std::vector<std::string>& words) {
  const std::vector<std::string> arguments = AskedForHelp(words);
  int exit_code = kSuccess;
  const auto app = MakeApp(&exit_code);
  try {
    // CLI11 expects the vector in reverse order.
    app->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& answer) {
    app->exit(answer);
  } catch (const CLI::ParseError& error) {
    if (arguments.empty()) {
      Print(stderr, app->help());
      return kUsage;
    }
    const UsageError wrong = DescribeUsageError(*app, arguments, error);
    return FailUsage(wrong.command, wrong.what);
  }
  return exit_code;
}

}  // namespace

int RunProgram(const std::vector<std::string>& arguments) {
  const int exit_code = RunCommand(arguments);
  const auto flushed = FlushOutput();
  if (flushed.has_value()) return exit_code;
  const bool is_fsck = !arguments.empty() && arguments[0] == "fsck";
  return Fail(flushed.error(), is_fsck ? exit_code | kFsckOperationalError : std::max(exit_code, kFailure));
}

}  // namespace weightfs::cli
