// SPDX-License-Identifier: Apache-2.0
// The program's entry: what belongs to the process, not to a command.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "cli/helper_names.h"
#include "cli/program.h"
#include "common/log.h"

namespace {

// A file that is opened later must not get the number of a stream that the caller has closed: output would destroy it.
// /dev/null in the wrong direction stands for the stream, and refuses its reads and writes.
void OccupyClosedStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  OccupyClosedStreams();
  weightfs::LogToStderr(spdlog::level::warn);
  // A reader of our output that goes away is an error of a write, not the end of a mount.
  signal(SIGPIPE, SIG_IGN);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return weightfs::cli::RunProgram(
      weightfs::cli::TranslateHelperName(argc > 0 ? argv[0] : "", arguments, geteuid() == 0));
}
