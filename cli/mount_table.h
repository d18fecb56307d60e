// Mounts of weightfs, as the kernel lists them, and who uses one.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace weightfs::cli {

struct MountEntry {
  std::string store;             // the mount's source
  std::string directory;
  std::string device;            // "MAJOR:MINOR" of what stat(2) shows as st_dev
  std::string options;           // of the superblock
};

// The mounts of weightfs in this process's mount namespace, oldest first.
Result<std::vector<MountEntry>> WeightfsMounts();

// The mount on `directory` (the newest where several lie on each other). Works when its process is gone, where every
// look at the directory itself fails. kNotFound with a full line otherwise.
Result<MountEntry> FindMount(const std::string& directory);

// The newest mount of the store in `directory`, if there is one.
std::optional<MountEntry> FindMountOfStore(const std::string& directory);

// Absolute, with symbolic links resolved as far as `path` can be looked at without asking the filesystem there.
std::string ResolvePath(const std::string& path);

// A process that keeps a mount busy, and by what: "its working directory", "DIR/model.pt (open)".
struct MountUser {
  pid_t pid = 0;
  std::string command;
  std::string reason;
};

// Looks through /proc, past the calling process; sees other users' processes as root only.
std::vector<MountUser> FindMountUsers(const MountEntry& mount);

// The fields of /proc/self/mountinfo with their octal escapes undone.
std::optional<MountEntry> ParseMountInfo(std::string_view line);

}  // namespace weightfs::cli
