// SPDX-License-Identifier: Apache-2.0
// Removes a mount: root uses the system call, other users use fusermount3, which does it for the mount's owner.
#pragma once

#include <string>

namespace weightfs {

enum class UnmountMode : unsigned char {
  kPlain,  // fails while the mount is in use
  kLazy,   // detaches the directory at once; the filesystem lives until its last user ends
  kForce,  // aborts the connection to the daemon: programs get errors, and the directory is detached
};

// Returns 0 or a positive errno: EBUSY (also when the mount is not the caller's), ENOENT when fusermount3 is needed but
// not installed, EPERM when the caller may not force. `device` is the mount's "MAJOR:MINOR"; only kForce needs it.
int UnmountDirectory(const std::string& directory, UnmountMode mode, const std::string& device = {});

}  // namespace weightfs
