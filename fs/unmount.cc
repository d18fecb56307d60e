// SPDX-License-Identifier: Apache-2.0
#include "fs/unmount.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <vector>

extern char** environ;

namespace weightfs {
namespace {

constexpr int kNotFoundByShell = 127;

int RunFusermount(const std::string& directory, bool detach) {
  std::vector<std::string> words = {"fusermount3", "-u"};
  if (detach) words.emplace_back("-z");
  words.insert(words.end(), {"--", directory});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  // Discard its message, because ours is more specific.
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int error = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return error;
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return errno;
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  return WIFEXITED(status) && WEXITSTATUS(status) == kNotFoundByShell ? ENOENT : EBUSY;
}

// The id of a connection is the minor number of its filesystem's device.
bool AbortConnection(const std::string& device) {
  const std::string number = device.substr(device.find(':') + 1);
  std::ofstream file("/sys/fs/fuse/connections/" + number + "/abort");
  file << "1" << std::flush;
  return file.good();
}

}  // namespace

int UnmountDirectory(const std::string& directory, UnmountMode mode, const std::string& device) {
  const bool detach = mode != UnmountMode::kPlain;
  if (geteuid() != 0) {
    // fusermount3 cannot force, but the owner of a mount may abort its connection.
    if (mode == UnmountMode::kForce && !AbortConnection(device)) return EPERM;
    return RunFusermount(directory, detach);
  }
  // MNT_FORCE aborts the connection; MNT_DETACH removes a mount that programs still use.
  const int flags = mode == UnmountMode::kForce ? MNT_FORCE | MNT_DETACH : detach ? MNT_DETACH : 0;
  return umount2(directory.c_str(), UMOUNT_NOFOLLOW | flags) == 0 ? 0 : errno;
}

}  // namespace weightfs
