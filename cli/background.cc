// SPDX-License-Identifier: Apache-2.0
#include "cli/background.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "cli/output.h"

namespace weightfs::cli {
namespace {

// The child's whole message: one byte '+' for success, or '-' followed by a line.
constexpr char kReady = '+', kFailed = '-';

std::string ReadAll(int descriptor) {
  std::string text;
  char piece[512];
  for (;;) {
    const ssize_t got = read(descriptor, piece, sizeof(piece));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(piece, static_cast<size_t>(got));
  }
}

[[noreturn]] void WaitForChild(int descriptor, pid_t child) {
  const std::string message = ReadAll(descriptor);
  if (!message.empty() && message[0] == kReady) std::_Exit(kSuccess);
  if (!message.empty() && message[0] == kFailed) {
    Print(stderr, fmt::format("weightfs: {}\n", message.substr(1)));
  } else {
    int status = 0;
    waitpid(child, &status, 0);
    Print(stderr,
          fmt::format("weightfs: the mount process ended before it was ready ({}); run it with -f for more messages\n",
                      WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "without a message"));
  }
  std::fflush(stderr);
  std::_Exit(kFailure);
}

bool PointAt(int descriptor, const char* path, int flags) {
  UniqueFd file(open(path, flags));
  if (!file || dup2(file.get(), descriptor) < 0) return false;
  if (file.get() == descriptor) file.Release();
  return true;
}

}  // namespace

void StartReport::Send(const std::string& text) {
  const UniqueFd descriptor = std::move(descriptor_);
  // If the parent was killed meanwhile, nothing can receive the result; the mount continues.
  [[maybe_unused]] const ssize_t sent = write(descriptor.get(), text.data(), text.size());
}

void StartReport::Ready(int log) {
  if (!descriptor_) return;
  Send({kReady});
  PointAt(STDOUT_FILENO, "/dev/null", O_WRONLY);
  if (log < 0 || dup2(log, STDERR_FILENO) < 0) PointAt(STDERR_FILENO, "/dev/null", O_WRONLY);
}

bool StartReport::Failed(const std::string& line) {
  if (!descriptor_) return false;
  Send(kFailed + line);
  return true;
}

Result<UniqueFd> GoToBackground() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe", "cannot be created");
  UniqueFd result(ends[0]);
  UniqueFd report(ends[1]);
  const pid_t child = fork();
  if (child < 0) return SystemError("fork", "cannot start the mount process");
  if (child > 0) {
    report.Close();
    WaitForChild(result.get(), child);
  }
  result.Close();
  setsid();
  PointAt(STDIN_FILENO, "/dev/null", O_RDONLY);
  // Leave the working directory, which would keep its filesystem busy.
  if (chdir("/") != 0) return SystemError("/", "chdir");
  return report;
}

}  // namespace weightfs::cli
