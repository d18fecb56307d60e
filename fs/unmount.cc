// SPDX-License-Identifier: Apache-2.0
#include "fs/unmount.h"

#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <utility>
#include <vector>

#include "common/run_program.h"

namespace weightfs {
namespace {

constexpr int kNotFoundByShell = 127;

// Discards its message, because ours is more specific.
int RunFusermount(const std::string& directory, bool detach) {
  std::vector<std::string> words = {"fusermount3", "-u"};
  if (detach) words.emplace_back("-z");
  words.insert(words.end(), {"--", directory});
  const auto status = RunProgram(std::move(words));
  if (!status) return status.error().error_number();
  return *status == 0 ? 0 : *status == kNotFoundByShell ? ENOENT : EBUSY;
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
