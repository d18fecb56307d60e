// SPDX-License-Identifier: Apache-2.0
// Finds the weightfs mounts that command arguments name.
#pragma once

#include "store/volume/store_directory.h"

namespace weightfs::cli {

// The weightfs mounts in this process's mount namespace, oldest first.
Result<std::vector<MountEntry>> WeightfsMounts();

// The mount on `path`, a directory or a file; the newest if several are stacked. It works even if the daemon is gone
// and every access to the path fails. Errors are complete messages: kBusy if another filesystem is mounted over it,
// otherwise kNotFound.
Result<MountEntry> FindMount(const std::string& path);

// The mount in this mount namespace that the holder of a store serves: its own mount point, or otherwise the newest
// bind mount of it. None if there is no such mount.
std::optional<MountEntry> FindServedMount(const StoreHolder& holder);

// Like FindServedMount, but also finds the newest mount of the store that has lost its daemon.
std::optional<MountEntry> FindMountOfStore(const StoreLocation& store, const StoreHolder& holder);

// True if the source of the mount is this store, by whatever path.
bool IsMountOf(const MountEntry& mount, const StoreLocation& store);

// True if a command should take the argument for devices of a store: a block device, a pool file that is in no mount of
// weightfs, or several with commas between them.
bool NamesDevices(const std::string& argument);

// Any user can mount a filesystem of this type and choose its source. So an entry of the mount table counts only if its
// user is root or this one, or if the process that has the lock in the directory of its source, has the devices, too.
bool IsBelievable(const MountEntry& mount, const StoreLocation& source);

// Where the daemon has a store that serves it, by whatever name; `named` if there is none. Wait for it and show it, but
// open what was named: only that was chosen by the caller.
StoreLocation FindServed(const StoreLocation& named);

// Opens the lock file of the store of a mount, to wait for its daemon. Reads nothing from its devices, which may hang.
Result<UniqueFd> OpenLockOf(const MountEntry& mount);

// The weightfs mount that contains `path`, if any.
std::optional<MountEntry> FindMountAbove(const std::string& path);

// SystemError of errno for a path. If the mount there admits its user alone, the error says so, and the next step.
Error AccessError(const std::string& path, std::string_view what);

// Opens a file or directory and checks that it is on a weightfs mount. An open descriptor keeps a mount from being
// unmounted, so commands that watch one open it for each look anew.
Result<UniqueFd> OpenOnMount(const std::string& path);

// Returns kInvalid, with a complete message that names the store, if `path` is inside a weightfs mount and is not a
// store of its own. `will_lock`: the caller needs an unmounted store.
Result<void> CheckIsNoMount(const std::string& path, bool will_lock = true);

// The absolute path. Symbolic links are resolved as far as that is possible without asking the filesystem there.
std::string ResolvePath(const std::string& path);

// Moves this process, which must still be single-threaded, into a mount namespace, given by a process number or a file
// such as /proc/PID/ns/mnt. An empty name changes nothing. From then on all paths are in that namespace. Errors are
// complete messages.
Result<void> EnterMountNamespace(const std::string& name);

}  // namespace weightfs::cli
