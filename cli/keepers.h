// SPDX-License-Identifier: Apache-2.0
// Who keeps a store in use: explains to users why a daemon keeps running after its directory was unmounted, and waits
// for a store that is being released.
#pragma once

#include "cli/output.h"
#include "common/mounts.h"
#include "store/volume/store_directory.h"

namespace weightfs::cli {

// The mounts and processes that keep a filesystem alive.
struct Keepers {
  std::vector<MountEntry> here;            // other mounts in this mount namespace
  std::vector<NamespaceMounts> elsewhere;  // mounts in other mount namespaces
  std::vector<MountUser> users;            // if `here` and `elsewhere` are empty: users of the detached mount
  bool complete = true;                    // false: this user may not inspect all processes
  bool empty() const { return here.empty() && elsewhere.empty() && users.empty(); }
};

// The processes that use a filesystem, whether it is mounted here or not. Sets only `users` and `complete`.
Keepers UsersOf(const MountedFilesystem& filesystem);

Keepers FindKeepers(const MountedFilesystem& filesystem);

// A part of a sentence, such as "it is mounted in another mount namespace, by process 4711 (sleep)". Never empty.
std::string DescribeKeepers(const Keepers& keepers);

// Advice to the user, as the end of a line.
std::string KeepersAdvice(const Keepers& keepers, pid_t daemon);

// A table of all of them, with at most 20 rows. Empty if all of them are in this namespace.
std::string KeepersTable(const Keepers& keepers);

// The error of `mount`, `verify` and others for a store whose daemon keeps running although the store is not mounted in
// this namespace.
Error StillServed(const std::string& store, const StoreHolder& holder, const Keepers& keepers);

// Returns when the lock in the store's directory is free, or after a minute. Waits for a holder that was killed and is
// still exiting, and for one whose mount is gone and that still writes its data (umount(8) does not wait for that).
// kBusy, with a complete message, if the store is mounted, if its daemon keeps running because its filesystem is still
// in use (another mount namespace, or open files after a lazy unmount; the message names the users), or if another
// command works on it. Changes nothing.
Result<void> WaitUntilReleased(const StoreLocation& store);

}  // namespace weightfs::cli
