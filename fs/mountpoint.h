// SPDX-License-Identifier: Apache-2.0
// The mountpoint: its checks, its preparation, and the removal of a mount.
#pragma once

#include <string>

#include "common/mounts.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// Rejects a mountpoint that contains the store's directory or device, or is inside it. Both paths are absolute, without
// links.
Result<void> CheckApart(const std::string& mountpoint, const std::string& store);

// Returns the absolute path of a directory that can be mounted on. Errors are full lines: it does not exist, is not a
// directory, is already a weightfs, or a requirement of mounting is missing (/dev/fuse, fusermount3, the right to use
// allow_other).
Result<std::string> PrepareMountpoint(const std::string& mountpoint, bool allow_other);

// Returns the path of a program in $PATH; empty when it is in none of the directories.
std::string FindProgram(const std::string& name);

// True when /etc/fuse.conf lets users other than root mount with allow_other.
bool UsersMayAllowOthers();

// Returns the next step for a user who may not open /dev/fuse.
std::string FuseDeviceAdvice();

// Raises the kernel's read-ahead of a mounted filesystem, which the protocol can only lower. Needs root. A refusal is
// logged at debug level.
void RaiseReadAhead(const MountEntry& mount, ByteCount read_ahead);

enum class UnmountMode : unsigned char {
  kPlain,  // fails while the mount is in use
  kLazy,   // detaches the directory at once; the filesystem lives until its last user ends
  kForce,  // aborts the connection to the daemon: programs get errors, and the directory is detached
};

// Removes a mount: root uses the system call, other users use fusermount3, which does it for the mount's owner. Returns
// 0 or a positive errno: EBUSY (also when the mount is not the caller's), ENOENT when fusermount3 is needed but
// not installed, EPERM when the caller may not force. `device` is the mount's "MAJOR:MINOR"; only kForce needs it.
int UnmountDirectory(const std::string& directory, UnmountMode mode, const std::string& device = {});

}  // namespace weightfs
