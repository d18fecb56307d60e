// SPDX-License-Identifier: Apache-2.0
#include "fs/mount_flags.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

namespace weightfs {
namespace {

TEST(MountFlagsTest, OptionsChangeTheFlagsOfTheMount) {
  const std::string current = "rw,nosuid,nodev,relatime,rw,user_id=0";
  EXPECT_EQ(ChangeMountFlags(current, {}), MS_NOSUID | MS_NODEV | MS_RELATIME);
  EXPECT_EQ(ChangeMountFlags(current, std::vector<std::string>{"suid", "noexec"}), MS_NODEV | MS_NOEXEC | MS_RELATIME);
}

TEST(MountFlagsTest, OneKindOfAccessTimesAtATime) {
  EXPECT_EQ(ChangeMountFlags("rw,relatime", std::vector<std::string>{"noatime"}), 0UL | MS_NOATIME);
  EXPECT_EQ(ChangeMountFlags("rw,noatime", std::vector<std::string>{"strictatime"}), 0UL | MS_STRICTATIME);
  EXPECT_EQ(ChangeMountFlags("rw", {}), 0UL | MS_STRICTATIME) << "which the kernel does not list";
}

TEST(MountFlagsTest, WithoutAKindOfAccessTimesTheKernelsDefaultIsNamed) {
  EXPECT_EQ(ChangeMountFlags("rw,noatime", std::vector<std::string>{"atime"}), 0UL | MS_RELATIME);
  EXPECT_EQ(ChangeMountFlags("rw", std::vector<std::string>{"nostrictatime"}), 0UL | MS_RELATIME);
}

TEST(MountFlagsTest, TheLastOptionWins) {
  EXPECT_EQ(ChangeMountFlags("rw,noatime", std::vector<std::string>{"nodiratime", "diratime", "nosuid", "suid"}),
            0UL | MS_NOATIME);
}

TEST(MountFlagsTest, UnknownNamesAreNoFlags) {
  EXPECT_TRUE(IsMountFlag("nosymfollow"));
  EXPECT_FALSE(IsMountFlag("commit=1"));
  EXPECT_FALSE(IsMountFlag(""));
}

}  // namespace
}  // namespace weightfs
