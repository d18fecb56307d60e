// The program: picks the subcommand, from the command line or from the name it was called by.
#include <fmt/format.h>

#include <signal.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/helper_names.h"
#include "cli/output.h"
#include "common/log.h"

namespace weightfs::cli {
namespace {

constexpr const char* kFooter =
    "Start here:\n"
    "  weightfs format /srv/tensors --size 8G     make a store\n"
    "  weightfs mount /srv/tensors /mnt/tensors   use it like any directory\n"
    "  weightfs info /mnt/tensors/model.pt        see where a tensor lies\n"
    "  weightfs umount /mnt/tensors               write everything and let go\n\n"
    "'weightfs COMMAND --help' explains a command; 'weightfs doctor' checks this machine.";

// fsck(8) has exit codes of its own, for wrong usage too.
constexpr int kFsckUsage = 16;

int Main(std::vector<std::string> arguments) {
  LogToStderr(spdlog::level::warn);
  // A reader of our output that goes away is an error of a write, not the end of a mount.
  signal(SIGPIPE, SIG_IGN);
  CLI::App app("weightfs: a filesystem that stores tensors", "weightfs");
  app.set_version_flag("--version", std::string("weightfs ") + WEIGHTFS_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
  app.get_formatter()->column_width(34);
  int exit_code = kSuccess;
  AddFormat(app, &exit_code);
  AddMount(app, &exit_code);
  AddUmount(app, &exit_code);
  AddFsck(app, &exit_code);
  AddInfo(app, &exit_code);
  AddDoctor(app, &exit_code);
  AddBench(app, &exit_code);
  const bool fsck = !arguments.empty() && arguments[0] == "fsck";
  const bool bare = arguments.empty();
  const std::string command = bare ? "" : arguments[0];
  try {
    // CLI11 takes its vector in reverse.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& asked) {
    app.exit(asked);
  } catch (const CLI::ParseError& error) {
    if (bare) {
      fmt::print(stderr, "{}", app.help());
      return kUsage;
    }
    const bool known = !app.get_subcommands([&](const CLI::App* one) { return one->get_name() == command; }).empty();
    const std::string what = known || command.starts_with('-') ? error.what() : "no command '" + command + "'";
    fmt::print(stderr, "weightfs: {}; see 'weightfs {}--help'\n", what, known ? command + " " : "");
    return fsck ? kFsckUsage : kUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace weightfs::cli

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return weightfs::cli::Main(weightfs::cli::TranslateHelperName(argc > 0 ? argv[0] : "", arguments, geteuid() == 0));
}
