// SPDX-License-Identifier: Apache-2.0
// Finds the user whose process serves a FUSE mount. A program that connects to that process must find the same user at
// the other end. The kernel records the user at mount time, and it cannot be changed afterwards.
#pragma once

#include <sys/types.h>

#include <istream>
#include <optional>

#include "common/result.h"

namespace weightfs::client {

// The user who serves the mount of an open file, in this process's user namespace. EACCES if that cannot be determined:
// this process does not see the mount, or the user has no id here. Thread-safe.
Result<uid_t> MountUser(int descriptor);

// The user_id= of the filesystem with this device number in the text of a /proc/PID/mountinfo; none if it is not
// listed.
std::optional<uid_t> FindMountUser(std::istream& mounts, dev_t device);

}  // namespace weightfs::client
