// SPDX-License-Identifier: Apache-2.0
// Processes that use a mounted filesystem.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace weightfs {

struct MountUser {
  pid_t process = 0;
  std::string command;
  std::string reason;  // "/mnt/t/model.pt (open)", "/mnt/t (working directory)", …
};

struct MountUsers {
  std::vector<MountUser> users;  // without the calling process
  bool complete = true;          // false: some processes may not be looked at by this user
};

// Looks through /proc for open files, directories and mappings of the superblock `device` ("MAJOR:MINOR"), also after
// its mount was detached. Asks the filesystem nothing, so it works when that is dead.
MountUsers FindMountUsers(std::string_view device);

}  // namespace weightfs
