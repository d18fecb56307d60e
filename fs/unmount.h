// SPDX-License-Identifier: Apache-2.0
// Takes a mount away: as root by the system call, else by fusermount3, which does it for the mount's owner.
#pragma once

#include <string>

namespace weightfs {

enum class UnmountMode : unsigned char {
  kPlain,  // fails while anybody uses the mount
  kLazy,   // the directory is free at once; the filesystem lives until its last user ends
  kForce,  // the connection to the daemon is ended: programs get errors, and the directory is free
};

// 0, or a positive errno: EBUSY (also: not the caller's), ENOENT when fusermount3 is needed and not installed, EPERM
// when the caller may not force. `device` is the mount's "MAJOR:MINOR"; only kForce needs it.
int UnmountDirectory(const std::string& directory, UnmountMode mode, const std::string& device = {});

}  // namespace weightfs
