// SPDX-License-Identifier: Apache-2.0
#include "client/lease/mount_user.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <sstream>

#include "common/unique_fd.h"

namespace weightfs::client {
namespace {

std::optional<uid_t> Find(const std::string& text, unsigned major, unsigned minor) {
  std::istringstream mounts(text);
  return FindMountUser(mounts, makedev(major, minor));
}

TEST(MountUserTest, IsTheUserThatTheKernelShowsForTheDevice) {
  const std::string text =
      "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,user_id=5\n"
      "30 22 0:44 / /mnt/a rw,nosuid,nodev - fuse.other other rw,user_id=7,group_id=7\n"
      "31 22 0:45 / /mnt/b\\040c rw shared:9 master:3 - fuse.weightfs weightfs rw,user_id=1000,group_id=0,allow_other\n"
      "32 22 0:45 /x /mnt/bind rw - fuse.weightfs weightfs rw,user_id=1000,group_id=0\n"
      "33 22 0:46 / /mnt/d rw - fuse.weightfs weightfs rw,group_id=3,max_user_id=4\n"
      "34 22 0:47 / /mnt/e rw - fuse.weightfs weightfs rw,user_id=0,group_id=0\n"
      "35 22 0:48 / /mnt/f rw - fuse.weightfs weightfs rw,user_id=12x\n"
      "damaged\n";
  EXPECT_EQ(Find(text, 0, 44), 7U);
  EXPECT_EQ(Find(text, 0, 45), 1000U);
  EXPECT_EQ(Find(text, 0, 46), std::nullopt);
  EXPECT_EQ(Find(text, 0, 47), 0U);
  EXPECT_EQ(Find(text, 0, 48), std::nullopt);
  EXPECT_EQ(Find(text, 0, 4), std::nullopt);
  EXPECT_EQ(Find("", 0, 45), std::nullopt);
}

TEST(MountUserTest, IsAbsentForAFilesystemThatNoUserServes) {
  const UniqueFd kernels(open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  const auto user = MountUser(kernels.get());
  ASSERT_FALSE(user.has_value());
  EXPECT_EQ(user.error().error_number(), EACCES);
  EXPECT_EQ(MountUser(-1).error().error_number(), EBADF);
}

}  // namespace
}  // namespace weightfs::client
