// SPDX-License-Identifier: Apache-2.0
#include "common/run_program.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "common/unique_fd.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace weightfs {

Result<int> RunProgram(std::vector<std::string> words, std::string_view input, std::string* output) {
  // Files instead of pipes, because they never block.
  const UniqueFd in(memfd_create("input", MFD_CLOEXEC)), out(memfd_create("output", MFD_CLOEXEC));
  if (!in || !out || pwrite(in.get(), input.data(), input.size(), 0) < 0) return ErrorCode{errno};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, in.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.get(), STDERR_FILENO);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int error = posix_spawnp(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrorCode{error};
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return ErrorCode{errno};
  }
  struct stat written = {};
  if (output != nullptr && fstat(out.get(), &written) == 0) {
    output->resize(static_cast<size_t>(written.st_size));
    const ssize_t got = pread(out.get(), output->data(), output->size(), 0);
    output->resize(got < 0 ? 0 : static_cast<size_t>(got));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace weightfs
