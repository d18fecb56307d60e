// SPDX-License-Identifier: Apache-2.0
// The directory that is mounted on.
#pragma once

#include <string>

#include "common/mounts.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// Refuses a mountpoint that holds the store's directory or lies in it; both are absolute, without links.
Result<void> CheckApart(const std::string& mountpoint, const std::string& store);

// The absolute path of a directory that can be mounted on. Full-line errors: it does not exist, is no directory, is a
// weightfs already, or what a mount needs (/dev/fuse, fusermount3, the right to allow others) is not there.
Result<std::string> PrepareMountpoint(const std::string& mountpoint, bool allow_other);

// The path of a program in $PATH; empty where it is in none of its directories.
std::string FindProgram(const std::string& name);

// Whether /etc/fuse.conf lets users other than root mount with allow_other.
bool UsersMayAllowOthers();

// The next step of a user who may not open /dev/fuse.
std::string FuseDeviceAdvice();

// Raises the kernel's read-ahead of a mounted filesystem; it can only be lowered by the protocol. Needs root, and is
// worth a debug line when it is refused.
void RaiseReadAhead(const MountEntry& mount, ByteCount read_ahead);

}  // namespace weightfs
