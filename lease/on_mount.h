// SPDX-License-Identifier: Apache-2.0
// Tells files of weightfs mounts from all others.
#pragma once

#include <sys/ioctl.h>

#include "lease/ioctl.h"

namespace weightfs::lease {

// True if the open file or directory is on a weightfs mount. Other FUSE filesystems answer an ioctl that they do not
// know with any error, or with success, so the result of another request does not tell.
inline bool IsOnMount(int descriptor) {
  weightfs_info info{};
  return ioctl(descriptor, WEIGHTFS_IOC_INFO, &info) == 0 && info.version != 0;
}

}  // namespace weightfs::lease
