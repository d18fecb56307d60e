// SPDX-License-Identifier: Apache-2.0
// The kernel's mount tables: of this process, and of those in other mount namespaces.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace weightfs {

// One line of /proc/PID/mountinfo, escapes undone.
struct MountEntry {
  int id = 0;             // unique on the machine while the mount exists
  std::string device;     // "MAJOR:MINOR", the st_dev of its files: one for each superblock, also under bind mounts
  std::string root;       // the part of the filesystem that is mounted: "/", or less for a bind mount
  std::string directory;  // where, as the process sees it; a file for a bind mount of a file
  std::string type;       // "fuse.weightfs"
  std::string source;     // the store's directory, as its daemon sees it
  std::string flags;      // of this mount: "rw,nosuid,…"
  std::string options;    // of the superblock
};

bool IsWeightfs(const MountEntry& mount);

// Whether `option` is in a comma-separated list.
bool HasOption(std::string_view list, std::string_view option);

// Lines that cannot be decoded are left out.
Result<std::vector<MountEntry>> ParseMounts(const std::string& text);

// The mounts that this process sees, oldest first.
Result<std::vector<MountEntry>> ReadMounts();

// The topmost mount on `path` (absolute, without links), if there is one.
std::optional<MountEntry> TopMountOn(const std::string& path);

// The mounts of a superblock that this process sees.
std::vector<MountEntry> MountsOf(std::string_view device);

// The processes of one mount namespace, and the mounts of a superblock there. `directory` is what those processes see.
struct NamespaceMounts {
  std::vector<pid_t> processes;
  std::vector<MountEntry> mounts;
};

struct MountsElsewhere {
  std::vector<NamespaceMounts> namespaces;
  bool complete = true;  // false: the mount table of some process may not be read by this user
};

// The mounts of a superblock in other mount namespaces: looks through the mount tables of all processes, but for this
// process's own mounts. Processes that end meanwhile are passed over. Namespaces without a process are not seen.
MountsElsewhere FindMountsElsewhere(std::string_view device);

}  // namespace weightfs
