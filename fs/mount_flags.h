// SPDX-License-Identifier: Apache-2.0
// The options of mount(8) that are flags of the kernel: their names, and what they do to a mount.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace weightfs {

// Whether `option` ("nosuid", "strictatime", …) is one of them.
bool IsMountFlag(std::string_view option);

// Their names, for --help.
std::vector<std::string_view> MountFlagNames();

// Which of `options` libfuse or fusermount3 hands to the kernel when it mounts.
bool LibfuseKnows(std::string_view option);

// The flags of a comma-separated list as /proc/PID/mountinfo has it, changed by `options` in their order.
unsigned long ChangeMountFlags(std::string_view current, std::span<const std::string> options);

// Gives a mount of weightfs the flags among `options` that libfuse has not set: asks the kernel as root. Other users
// get an error where an option would restrict something (nosymfollow); what changes nothing for weightfs, which moves
// no access times on reading, is left out for them.
Result<void> AddMountFlags(const std::string& directory, std::span<const std::string> options);

// remount: the flags, and whether files may be changed, of a mount in use. As root. kBusy when it cannot become
// read-only because files are open for writing.
Result<void> ChangeMount(const std::string& directory, std::span<const std::string> options, bool read_only);

}  // namespace weightfs
