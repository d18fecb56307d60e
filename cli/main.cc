// SPDX-License-Identifier: Apache-2.0
// The entry point of the program: setup for the process rather than for a command.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/names.h"
#include "cli/program.h"
#include "common/log.h"
#include "common/out_of_memory.h"

namespace {

// Opens /dev/null for each standard stream that the caller has closed. Otherwise a file opened later could get the
// stream's number, and output would overwrite it. /dev/null is opened in the wrong direction, so that reads and writes
// of the stream fail.
void OccupyClosedStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// Each open file of a mount's users may need a descriptor; RocksDB and the devices need more, also in other commands.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) spdlog::warn("RLIMIT_NOFILE: {}", std::strerror(errno));
}

}  // namespace

int main(int argc, char** argv) {
  OccupyClosedStreams();
  weightfs::EndWhenOutOfMemory();
  weightfs::LogToStderr(spdlog::level::warn);
  RaiseDescriptorLimit();
  // Ignored, because a closed pipe is a write error and must not end a mount.
  signal(SIGPIPE, SIG_IGN);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return weightfs::cli::RunProgram(
      weightfs::cli::TranslateHelperName(argc > 0 ? argv[0] : "", arguments, geteuid() == 0));
}
