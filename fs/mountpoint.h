// SPDX-License-Identifier: Apache-2.0
// The mountpoint: its checks and preparation.
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

}  // namespace weightfs
