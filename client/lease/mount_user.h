// SPDX-License-Identifier: Apache-2.0
// The user whose process serves a FUSE mount: the one whom a program that talks to that process must find at the other
// end. The kernel knows the user from the time of the mount; nobody can change it afterwards.
#pragma once

#include <sys/types.h>

#include <istream>
#include <optional>

#include "common/result.h"

namespace weightfs::client {

// The user who serves the mount that an open file lies on, as this process sees user ids. EACCES where that cannot be
// told: the mount is not among those of this process, or its user has no id here. Any thread.
Result<uid_t> MountUser(int descriptor);

// The user_id= of the filesystem with this device number in a text of /proc/PID/mountinfo; none when it is not there.
std::optional<uid_t> FindMountUser(std::istream& mounts, dev_t device);

}  // namespace weightfs::client
