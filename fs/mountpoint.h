// The directory that is mounted on, and what the system says about mounts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// One line of /proc/self/mountinfo.
struct MountEntry {
  std::string device;       // "MAJOR:MINOR"
  std::string mountpoint;
  std::string type;         // "fuse.weightfs"
  std::string source;
};

inline constexpr std::string_view kMountType = "fuse.weightfs";

// Undecodable lines are left out.
std::vector<MountEntry> ParseMountInfo(std::string_view text);

// The topmost mount on `mountpoint` (an absolute path without links), if one is.
std::optional<MountEntry> FindMount(const std::string& mountpoint);

// The absolute path of a directory that `store_directory` can be mounted on. Full-line errors: it does not exist, is no
// directory, is a weightfs already, holds the store or is held by it, or what a mount needs (/dev/fuse, fusermount3, the
// right to allow others) is not there. Takes away a mount that a killed weightfs left there.
Result<std::string> PrepareMountpoint(const std::string& mountpoint, const std::string& store_directory,
                                      bool allow_other);

// Unmounts, also while files are open; as root directly, else through fusermount3. False when it did not work.
bool DetachMount(const std::string& mountpoint);

// Raises the kernel's read-ahead of a mounted filesystem; it can only be lowered by the protocol. Needs root, and is
// worth a debug line when it is refused.
void RaiseReadAhead(const MountEntry& mount, ByteCount read_ahead);

}  // namespace weightfs
