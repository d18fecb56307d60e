// SPDX-License-Identifier: Apache-2.0
#include "common/mounts.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/support/temporary_directory.h"

namespace weightfs {
namespace {

TEST(MountsTest, ReadsEachFieldWithItsEscapesUndone) {
  const auto mounts = ParseMounts(
      "24 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
      "broken line\n"
      "91 24 0:39 /sub /mnt/my\\040tensors\\134x rw,nosuid shared:5 master:2 - fuse.weightfs /srv/a\\011b "
      "rw,user_id=0,group_id=0\n");
  ASSERT_TRUE(mounts.has_value());
  ASSERT_EQ(mounts->size(), 2U);
  EXPECT_FALSE(IsWeightfs(mounts->at(0)));
  const MountEntry& mount = mounts->at(1);
  EXPECT_TRUE(IsWeightfs(mount));
  EXPECT_EQ(mount.id, 91);
  EXPECT_EQ(mount.device, "0:39");
  EXPECT_EQ(mount.root, "/sub");
  EXPECT_EQ(mount.directory, "/mnt/my tensors\\x");
  EXPECT_EQ(mount.source, "/srv/a\tb");
  EXPECT_EQ(mount.flags, "rw,nosuid");
  EXPECT_EQ(mount.options, "rw,user_id=0,group_id=0");
}

TEST(MountsTest, DamagedTextHasNoMounts) {
  for (const char* text : {"", "\n", "22 1 - fuse.weightfs", "22 1 x:y / /x rw - fuse.weightfs"}) {
    const auto mounts = ParseMounts(text);
    ASSERT_TRUE(mounts.has_value()) << text;
    EXPECT_TRUE(mounts->empty()) << text;
  }
}

TEST(MountsTest, FindsTheRootMount) {
  const auto root = TopMountOn("/");
  ASSERT_TRUE(root.has_value());
  EXPECT_FALSE(MountsOf(root->device).empty());
  EXPECT_FALSE(TopMountOn("/no/such/mount").has_value());
}

// A child has a filesystem of its own in a mount namespace of its own.
TEST(MountsTest, FindsMountsOfOtherNamespaces) {
  const TemporaryDirectory scratch;
  const std::string directory = scratch.path().string();
  int ready[2], go[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(go[1]);
    const bool made = unshare(CLONE_NEWNS) == 0 && mount("", "/", "", MS_REC | MS_PRIVATE, "") == 0 &&
                      mount("tmpfs", directory.c_str(), "tmpfs", 0, "") == 0;
    std::string device(32, '\0');
    if (made) {
      const auto own = TopMountOn(directory);
      if (own.has_value()) device.replace(0, own->device.size(), own->device);
    }
    char byte = 0;
    if (write(ready[1], device.data(), device.size()) != 32 || read(go[0], &byte, 1) != 0) _exit(1);
    _exit(0);
  }
  close(go[0]);
  char device[33] = {};
  ASSERT_EQ(read(ready[0], device, 32), 32);
  if (device[0] != '\0') {
    const MountsElsewhere elsewhere = FindMountsElsewhere(device);
    ASSERT_EQ(elsewhere.namespaces.size(), 1U);
    EXPECT_EQ(elsewhere.namespaces[0].processes, std::vector<pid_t>{child});
    ASSERT_EQ(elsewhere.namespaces[0].mounts.size(), 1U);
    EXPECT_EQ(elsewhere.namespaces[0].mounts[0].directory, directory);
  }
  close(go[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  if (device[0] != '\0') {
    EXPECT_TRUE(FindMountsElsewhere(device).namespaces.empty());
  }
  close(ready[0]);
  close(ready[1]);
  if (device[0] == '\0') GTEST_SKIP() << "needs the right to make a mount namespace";
}

}  // namespace
}  // namespace weightfs
