// SPDX-License-Identifier: Apache-2.0
#include "common/run_program.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include "common/result.h"
#include "common/system_calls.h"
#include "common/unique_fd.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace weightfs {
namespace {

size_t SizeOf(int file) {
  struct stat status = {};
  return fstat(file, &status) == 0 ? static_cast<size_t>(status.st_size) : 0;
}

// Waits for the end of a program, with or without a check. Returns its status as waitpid gives it.
Result<int> WaitForEnd(pid_t child, int output, const std::function<Result<void>(size_t printed)>& check) {
  int status = 0;
  Result<void> checked;
  for (pid_t ended = 0; ended != child;) {
    if (check && checked) {
      checked = check(SizeOf(output));
      if (!checked) kill(-child, SIGKILL);
    }
    ended = RepeatInterrupted([&] { return waitpid(child, &status, check && checked ? WNOHANG : 0); });
    if (ended < 0) return ErrorCode{errno};
    if (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (!checked) return checked.error();
  return status;
}

}  // namespace

Result<int> RunProgram(std::vector<std::string> words, std::string_view input, std::string* output,
                       const std::function<Result<void>(size_t printed)>& check) {
  // Files instead of pipes, because they never block.
  const UniqueFd in(memfd_create("input", MFD_CLOEXEC)), out(memfd_create("output", MFD_CLOEXEC));
  if (!in || !out || !WriteFully(in.get(), std::as_bytes(std::span(input)), 0)) return ErrorCode{errno};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, in.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.get(), STDOUT_FILENO);
  if (!check) posix_spawn_file_actions_adddup2(&actions, out.get(), STDERR_FILENO);
  // This thread may have signals blocked.
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int error = posix_spawnp(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrorCode{error};
  auto status = WaitForEnd(child, out.get(), check);
  if (!status) return status;
  if (check) RETURN_IF_ERROR(check(SizeOf(out.get())));
  if (output != nullptr) {
    output->resize(SizeOf(out.get()));
    const ssize_t got = ReadFully(out.get(), std::as_writable_bytes(std::span(*output)), 0);
    output->resize(got < 0 ? 0 : static_cast<size_t>(got));
  }
  return WIFEXITED(*status) ? WEXITSTATUS(*status) : -WTERMSIG(*status);
}

}  // namespace weightfs
