// SPDX-License-Identifier: Apache-2.0
// Changes a mount in use: mount -o remount, umount -r.
#pragma once

#include "common/mounts.h"
#include "fs/mount_options.h"

namespace weightfs::cli {

// Applies the options of a remount to the mount of `store` at `directory`. They change the current state: without ro or
// rw it stays as it is. Warns about options that a remount cannot change, except with `from_table`: mount(8) adds those
// of fstab and of the mount table by itself. Must run as root; errors are complete messages.
Result<void> Remount(const std::string& store, const std::string& directory, const std::vector<std::string>& options,
                     bool from_table);

// With `read_only`, nothing can be changed through the mount any more, and everything is on the device on return.
// Otherwise the mount becomes writable again. kBusy, with the processes that have files open for writing.
Result<void> RemountReadOnly(const MountEntry& mount, bool read_only, const std::vector<std::string>& flags = {});

}  // namespace weightfs::cli
