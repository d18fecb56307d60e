// SPDX-License-Identifier: Apache-2.0
#include "common/mounts.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/support/holding_child.h"
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
  EXPECT_FALSE(MountsOf(root->filesystem()).empty());
  EXPECT_FALSE(TopMountOn("/no/such/mount").has_value());
}

TEST(MountsTest, AReusedDeviceNumberIsOfTheFilesystemThatHasItNow) {
  const auto root = TopMountOn("/");
  ASSERT_TRUE(root.has_value());
  const MountedFilesystem now = root->filesystem(), earlier{.device = now.device, .source = "/srv/a"};
  HoldingChild child([](const HoldingChild::Hold& hold) {
    if (open("/", O_RDONLY | O_CLOEXEC) >= 0) hold("open");
  });
  ASSERT_EQ(child.text(), "open");
  EXPECT_FALSE(FindMountUsers(now).users.empty());
  EXPECT_TRUE(FindMountUsers(earlier).users.empty());
  EXPECT_TRUE(MountsOf(earlier).empty());
  EXPECT_TRUE(FindMountsElsewhere(earlier).reused);
  EXPECT_FALSE(FindMountsElsewhere(now).reused);
}

// A child has a filesystem of its own in a separate mount namespace.
TEST(MountsTest, FindsMountsOfOtherNamespaces) {
  const TemporaryDirectory scratch;
  const std::string directory = scratch.path().string();
  HoldingChild child([&](const HoldingChild::Hold& hold) {
    const bool made = unshare(CLONE_NEWNS) == 0 && mount("", "/", "", MS_REC | MS_PRIVATE, "") == 0 &&
                      mount("tmpfs", directory.c_str(), "tmpfs", 0, "") == 0;
    const auto own = made ? TopMountOn(directory) : std::nullopt;
    if (own.has_value()) hold(own->device);
  });
  const MountedFilesystem filesystem{.device = child.text(), .source = "tmpfs"};
  if (filesystem.device.empty()) GTEST_SKIP() << "needs the right to make a mount namespace";
  const MountsElsewhere elsewhere = FindMountsElsewhere(filesystem);
  ASSERT_EQ(elsewhere.namespaces.size(), 1U);
  EXPECT_EQ(elsewhere.namespaces[0].processes, std::vector<pid_t>{child.process()});
  ASSERT_EQ(elsewhere.namespaces[0].mounts.size(), 1U);
  EXPECT_EQ(elsewhere.namespaces[0].mounts[0].directory, directory);
  EXPECT_FALSE(elsewhere.reused);
  const MountsElsewhere earlier = FindMountsElsewhere({.device = filesystem.device, .source = "/srv/a"});
  EXPECT_TRUE(earlier.namespaces.empty() && earlier.reused);
  child.End();
  EXPECT_TRUE(FindMountsElsewhere(filesystem).namespaces.empty());
}

}  // namespace
}  // namespace weightfs
