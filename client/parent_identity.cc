// SPDX-License-Identifier: Apache-2.0
#include "client/parent_identity.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include "common/hex.h"
#include "common/unique_fd.h"
#include "lease/ioctl.h"

namespace weightfs::client {

std::string ParentIdentity(int opened) {
  const UniqueFd parent(openat(opened, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  weightfs_info info{};
  if (!parent || ioctl(parent.get(), WEIGHTFS_IOC_INFO, &info) != 0 || info.version == 0) return {};
  return ToHex(info.store_id) + ":" + std::to_string(info.inode);
}

}  // namespace weightfs::client
