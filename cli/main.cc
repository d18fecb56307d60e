// SPDX-License-Identifier: Apache-2.0
// The program's entry: what belongs to the process, not to a command.
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "cli/helper_names.h"
#include "cli/program.h"
#include "common/log.h"

int main(int argc, char** argv) {
  weightfs::LogToStderr(spdlog::level::warn);
  // A reader of our output that goes away is an error of a write, not the end of a mount.
  signal(SIGPIPE, SIG_IGN);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return weightfs::cli::RunProgram(
      weightfs::cli::TranslateHelperName(argc > 0 ? argv[0] : "", arguments, geteuid() == 0));
}
