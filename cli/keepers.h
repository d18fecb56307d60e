// SPDX-License-Identifier: Apache-2.0
// Why a daemon goes on after its directory was unmounted, for people.
#pragma once

#include <string>
#include <vector>

#include "cli/output.h"
#include "common/mount_users.h"
#include "common/mounts.h"
#include "common/result.h"
#include "store/volume/store_directory.h"

namespace weightfs::cli {

// The processes that keep the filesystem of a device alive.
struct Keepers {
  std::vector<MountEntry> here;            // other mounts of it in this mount namespace
  std::vector<NamespaceMounts> elsewhere;  // mounts in other namespaces
  std::vector<MountUser> users;            // with `here` and `elsewhere` empty: of what was detached
  bool complete = true;                    // false: this user may not look at all processes
  bool empty() const { return here.empty() && elsewhere.empty() && users.empty(); }
};

// The processes that use the filesystem of a device, mounted here or not; only `users` and `complete` are filled in.
Keepers UsersOf(const std::string& device);

Keepers FindKeepers(const std::string& device);

// "it is mounted in another mount namespace, by process 4711 (sleep)", for the middle of a line. Never empty.
std::string DescribeKeepers(const Keepers& keepers);

// What to do about them: full words for the end of a line.
std::string KeepersAdvice(const Keepers& keepers, pid_t daemon);

// A table of all of them, with at most 20 rows; empty for those in this namespace alone.
std::string KeepersTable(const Keepers& keepers);

// The line of `mount`, `fsck`, … about a store whose daemon goes on though it is not mounted in this namespace.
Error StillServed(const std::string& store, const StoreHolder& holder, const Keepers& keepers);

}  // namespace weightfs::cli
