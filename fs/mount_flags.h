// SPDX-License-Identifier: Apache-2.0
// Options of mount(8) that are kernel mount flags: their names, and their effect on a mount.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace weightfs {

// True when `option` ("nosuid", "strictatime", …) is a mount flag.
bool IsMountFlag(std::string_view option);

// The names of all mount flags, for --help.
std::vector<std::string_view> MountFlagNames();

// True for an option that libfuse or fusermount3 passes to the kernel when it mounts.
bool LibfuseKnows(std::string_view option);

// Returns the flags of a comma-separated list, as in /proc/PID/mountinfo, changed by `options` in order.
unsigned long ChangeMountFlags(std::string_view current, std::span<const std::string> options);

// Sets those flags among `options` on a mount of weightfs that libfuse has not set. Needs root. For other users, a
// restricting option (nosymfollow) is an error, and an option without effect on weightfs, which never updates access
// times on reads, is ignored.
Result<void> AddMountFlags(const std::string& directory, std::span<const std::string> options);

// Remounts: changes the flags of a mount in use, and whether it is read-only. Needs root. Returns kBusy when it cannot
// become read-only because files are open for writing.
Result<void> ChangeMount(const std::string& directory, std::span<const std::string> options, bool read_only);

}  // namespace weightfs
