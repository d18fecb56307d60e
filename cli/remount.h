// SPDX-License-Identifier: Apache-2.0
// Changes a mount in use: mount -o remount, umount -r.
#pragma once

#include <string>

#include "common/mounts.h"
#include "common/result.h"
#include "fs/mount_options.h"

namespace weightfs::cli {

// What the options of a remount ask for, on the mount `directory` of `store`. They are applied to what the mount is
// now: without ro or rw it stays as it is. Warns about options that a remount cannot change, unless they come
// `from_table`: mount(8) adds those of fstab and of the mount table unasked. As root; full-line errors.
Result<void> Remount(const std::string& store, const std::string& directory, const std::vector<std::string>& options,
                     bool from_table);

// From now on nothing can be changed through the mount, and everything is on the device (true); or it can again
// (false). kBusy, with the processes that have files open for writing.
Result<void> RemountReadOnly(const MountEntry& mount, bool read_only, const std::vector<std::string>& flags = {});

}  // namespace weightfs::cli
