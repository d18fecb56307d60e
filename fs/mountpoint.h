// SPDX-License-Identifier: Apache-2.0
// The directory that is mounted on.
#pragma once

#include <string>

#include "common/mounts.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// The absolute path of a directory that `store_directory` can be mounted on. Full-line errors: it does not exist, is no
// directory, is a weightfs already, holds the store or is held by it, or what a mount needs (/dev/fuse, fusermount3,
// the right to allow others) is not there. Takes away a mount that a killed weightfs left there.
Result<std::string> PrepareMountpoint(const std::string& mountpoint, const std::string& store_directory,
                                      bool allow_other);

// The next step of a user who may not open /dev/fuse.
std::string FuseDeviceAdvice();

// Raises the kernel's read-ahead of a mounted filesystem; it can only be lowered by the protocol. Needs root, and is
// worth a debug line when it is refused.
void RaiseReadAhead(const MountEntry& mount, ByteCount read_ahead);

}  // namespace weightfs
