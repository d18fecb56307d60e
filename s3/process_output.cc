// SPDX-License-Identifier: Apache-2.0
#include "s3/process_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <thread>

#include "common/result.h"
#include "common/unique_fd.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace weightfs::s3 {
namespace {

constexpr size_t kMaxOutput = 1 << 20;
constexpr int kPollMs = 100;
constexpr std::chrono::milliseconds kEndPoll{10};

// Starts the command in a process group of its own, so that its children can be killed with it, and with the signals
// of a new program: this thread has them blocked.
Result<pid_t> Spawn(const std::string& command, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  const char* arguments[] = {"/bin/sh", "-c", command.c_str(), nullptr};
  pid_t process = 0;
  const int error = posix_spawn(&process, arguments[0], &actions, &attributes, const_cast<char**>(arguments), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return SystemError("/bin/sh", "cannot run", error);
  return process;
}

// How long a command may run.
class Limits {
 public:
  Limits(std::chrono::seconds timeout, const std::atomic<bool>& cancelled) : timeout_(timeout), cancelled_(cancelled) {}
  // Fails once the command must end.
  Result<void> Check() const {
    if (cancelled_.load()) return ErrorCode::kCancelled;
    if (std::chrono::steady_clock::now() < deadline_) return {};
    return Error{ErrorCode::kIo, fmt::format("it was not done after {} s", timeout_.count())};
  }

 private:
  const std::chrono::seconds timeout_;
  const std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::now() + timeout_;
  const std::atomic<bool>& cancelled_;
};

// Reads until the end of the output.
Result<std::string> ReadOutput(int input, const Limits& limits) {
  std::string output;
  while (true) {
    RETURN_IF_ERROR(limits.Check());
    pollfd waiting{input, POLLIN, 0};
    if (poll(&waiting, 1, kPollMs) <= 0) continue;
    char bytes[4096];
    const ssize_t count = read(input, bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("its output", "cannot read");
    if (count == 0) return output;
    output.append(bytes, static_cast<size_t>(count));
    if (output.size() > kMaxOutput) return Error{ErrorCode::kIo, "its output is too long"};
  }
}

// Waits for the end of a command whose output has ended: it may have closed its output and go on. Returns its status.
Result<int> WaitForEnd(pid_t process, const Limits& limits) {
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(process, &status, WNOHANG)) == 0) {
    RETURN_IF_ERROR(limits.Check());
    std::this_thread::sleep_for(kEndPoll);
  }
  return status;
}

// Ends the command and its children.
void Kill(pid_t process) {
  kill(-process, SIGKILL);
  while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

Result<std::string> ProcessOutput(const std::string& command, std::chrono::seconds timeout,
                                  const std::atomic<bool>& cancelled) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe", "cannot create");
  const UniqueFd input(ends[0]);
  UniqueFd output(ends[1]);
  ASSIGN_OR_RETURN(const pid_t process, Spawn(command, output.get()));
  output.Close();
  const Limits limits(timeout, cancelled);
  auto text = ReadOutput(input.get(), limits);
  const auto status = text ? WaitForEnd(process, limits) : Result<int>(text.error());
  if (!status) {
    Kill(process);
    return status.error();
  }
  if (WIFEXITED(*status) && WEXITSTATUS(*status) == 0) return text;
  return Error{ErrorCode::kIo, WIFEXITED(*status) ? fmt::format("it exited with {}", WEXITSTATUS(*status))
                                                  : fmt::format("signal {} ended it", WTERMSIG(*status))};
}

}  // namespace weightfs::s3
