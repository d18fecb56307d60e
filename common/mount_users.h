// SPDX-License-Identifier: Apache-2.0
// Processes that use a mounted filesystem.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/mounts.h"

namespace weightfs {

struct MountUser {
  pid_t process = 0;
  std::string command;
  std::string reason;  // "/mnt/t/model.pt (open)", "/mnt/t (working directory)", …
};

struct MountUsers {
  std::vector<MountUser> users;  // excludes the calling process
  bool complete = true;          // false: this user may not inspect some processes
};

// Searches /proc for open files, directories and mappings of a filesystem, even if its mount was detached. Finds none
// if another filesystem has its device number. Does not access the filesystem, so it works when the daemon is dead.
MountUsers FindMountUsers(const MountedFilesystem& filesystem);

}  // namespace weightfs
