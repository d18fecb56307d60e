// SPDX-License-Identifier: Apache-2.0
// The mounts of weightfs that the arguments of commands name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/mounts.h"
#include "common/result.h"
#include "store/volume/store_directory.h"

namespace weightfs::cli {

// The mounts of weightfs in this process's mount namespace, oldest first.
Result<std::vector<MountEntry>> WeightfsMounts();

// The mount on `path`, a directory or a file (the newest where several lie on each other). Works when its process is
// gone, where every look at the path itself fails. A full line otherwise: kBusy where another filesystem is mounted
// over it, else kNotFound.
Result<MountEntry> FindMount(const std::string& path);

// The mount in this mount namespace that the holder of a store serves, if there is one: its own, or else the newest
// bind mount of it.
std::optional<MountEntry> FindServedMount(const StoreHolder& holder);

// The same, or the newest mount of the store in `directory` that has lost its daemon.
std::optional<MountEntry> FindMountOfStore(const std::string& directory, const StoreHolder& holder);

// The mount of weightfs that `path` is or lies in, if there is one.
std::optional<MountEntry> FindMountAbove(const std::string& path);

// kInvalid, with a full line that names the store, where `path` is or lies in a mount of weightfs and is no store of
// its own. `will_lock`: the caller needs a store that is not mounted.
Result<void> CheckIsNoMount(const std::string& path, bool will_lock = true);

// Absolute, with symbolic links resolved as far as `path` can be looked at without asking the filesystem there.
std::string ResolvePath(const std::string& path);

}  // namespace weightfs::cli
