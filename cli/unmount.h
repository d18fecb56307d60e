// Taking a mount away: as root by the system call, else by fusermount3, which may do it for the mount's owner.
#pragma once

#include <string>

namespace weightfs::cli {

// 0, or a positive errno: EBUSY (also: not the caller's), ENOENT when fusermount3 is needed and not installed. With
// `detach` the directory is free at once, whoever still uses what was mounted there.
int UnmountDirectory(const std::string& directory, bool detach);

}  // namespace weightfs::cli
