// SPDX-License-Identifier: Apache-2.0
// The mounts of weightfs that the commands are asked about.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/mounts.h"
#include "common/result.h"

namespace weightfs::cli {

// The mounts of weightfs in this process's mount namespace, oldest first.
Result<std::vector<MountEntry>> WeightfsMounts();

// The mount on `path`, a directory or a file (the newest where several lie on each other). Works when its process is
// gone, where every look at the path itself fails. kNotFound with a full line otherwise.
Result<MountEntry> FindMount(const std::string& path);

// The newest mount of the store in `directory`, if there is one.
std::optional<MountEntry> FindMountOfStore(const std::string& directory);

// kInvalid, with a full line, where `path` is a mount of weightfs and no store of its own: the store that is meant is
// named.
Result<void> CheckIsNoMount(const std::string& path);

// Absolute, with symbolic links resolved as far as `path` can be looked at without asking the filesystem there.
std::string ResolvePath(const std::string& path);

}  // namespace weightfs::cli
