// SPDX-License-Identifier: Apache-2.0
// The kernel's mount tables of this process and of processes in other mount namespaces, and the processes that use a
// mounted filesystem.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace weightfs {

struct MountEntry;

// A mounted filesystem, here or in other mount namespaces. When a filesystem ends, the kernel gives its device number
// to another one, so the number alone does not identify it.
struct MountedFilesystem {
  std::string device;  // "MAJOR:MINOR", st_dev of its files
  std::string source;  // MountEntry::source; empty: unknown, and then only `device` counts

  // True if the mount is of this filesystem: its own, or a bind mount.
  bool Has(const MountEntry& mount) const;
};

// One line of /proc/PID/mountinfo, with escapes decoded.
struct MountEntry {
  int id = 0;             // unique on the machine during the lifetime of the mount
  std::string device;     // "MAJOR:MINOR", st_dev of its files: one per superblock, the same under bind mounts
  std::string root;       // the mounted part of the filesystem: "/", or less for a bind mount
  std::string directory;  // mount point as the process sees it; a file for a bind mount of a file
  std::string type;       // "fuse.weightfs"
  std::string source;     // the store's directory, as its daemon sees it; the same under bind mounts
  std::string flags;      // of this mount: "rw,nosuid,…"
  std::string options;    // of the superblock

  MountedFilesystem filesystem() const { return {device, source}; }
};

bool IsWeightfs(const MountEntry& mount);

// True when `option` is in a comma-separated list.
bool HasOption(std::string_view list, std::string_view option);

// Parses the text of a mountinfo file. Ignores lines that cannot be decoded.
Result<std::vector<MountEntry>> ParseMounts(const std::string& text);

// The mounts visible to this process, oldest first.
Result<std::vector<MountEntry>> ReadMounts();

// The topmost mount on `path` (absolute, without links); nullopt when there is none.
std::optional<MountEntry> TopMountOn(const std::string& path);

// The mounts of a filesystem that are visible to this process.
std::vector<MountEntry> MountsOf(const MountedFilesystem& filesystem);

// The processes of one mount namespace and the mounts of a filesystem in it. `directory` is the path in that namespace.
struct NamespaceMounts {
  std::vector<pid_t> processes;
  std::vector<MountEntry> mounts;
};

struct MountsElsewhere {
  std::vector<NamespaceMounts> namespaces;
  bool complete = true;  // false: this user may not read the mount table of some process
  bool reused = false;   // another filesystem has the device number, so this one has ended
};

// Finds the mounts of a filesystem in other mount namespaces. Reads the mount tables of all processes and leaves out
// this process's own mounts. Ignores processes that exit meanwhile. Cannot see namespaces without a process.
MountsElsewhere FindMountsElsewhere(const MountedFilesystem& filesystem);

struct MountUser {
  pid_t process = 0;
  std::string command;
  std::string reason;  // "/mnt/t/model.pt (open)", "/mnt/t (working directory)", …
};

struct MountUsers {
  std::vector<MountUser> users;  // excludes the calling process
  bool complete = true;          // false: this user may not inspect some processes
};

// Searches /proc for open files, directories and mappings of a filesystem, even if its mount was detached. Finds none
// if another filesystem has its device number. Does not access the filesystem, so it works when the daemon is dead.
MountUsers FindMountUsers(const MountedFilesystem& filesystem);

}  // namespace weightfs
