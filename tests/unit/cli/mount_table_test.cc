// SPDX-License-Identifier: Apache-2.0
#include "cli/mount_table.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/temporary_directory.h"

namespace weightfs::cli {
namespace {

TEST(MountTableTest, ADirectoryWithoutAMountIsNotFound) {
  const TemporaryDirectory scratch;
  const auto mount = FindMount(scratch.path());
  ASSERT_FALSE(mount.has_value());
  EXPECT_EQ(mount.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(FindMountOfStore(scratch.path().string(), {}).has_value());
  EXPECT_FALSE(FindMountAbove(scratch.path()).has_value());
}

TEST(MountTableTest, ADirectoryThatIsNotAMountMayBeAStore) {
  const TemporaryDirectory scratch;
  EXPECT_TRUE(CheckIsNoMount(scratch.path()).has_value());
}

TEST(MountTableTest, PathsAreResolvedAsFarAsTheyExist) {
  const TemporaryDirectory scratch;
  const auto real = std::filesystem::canonical(scratch.path());
  std::filesystem::create_directory(real / "store");
  std::filesystem::create_directory_symlink(real / "store", real / "alias");
  EXPECT_EQ(ResolvePath(real / "alias"), real / "store");
  EXPECT_EQ(ResolvePath(real / "alias" / "missing"), real / "store" / "missing");
  EXPECT_EQ(ResolvePath((real / "store" / "").string()), real / "store");
}

TEST(MountTableTest, OnlyTheHolderOfTheLockServesAMount) {
  const auto root = TopMountOn("/");
  ASSERT_TRUE(root.has_value());
  StoreHolder holder{
      .noted = 1, .state = StoreHolder::State::kServing, .filesystem = root->filesystem(), .directory = "/"};
  EXPECT_FALSE(FindServedMount(holder).has_value());
  holder.held = true;
  const auto served = FindServedMount(holder);
  ASSERT_TRUE(served.has_value());
  EXPECT_EQ(served->directory, "/");
  holder.filesystem.source = "/srv/a";  // the device number was reused
  EXPECT_FALSE(FindServedMount(holder).has_value());
  holder.filesystem.source.clear();  // noted by an older version
  EXPECT_TRUE(FindServedMount(holder).has_value());
  holder.state = StoreHolder::State::kClosing;
  EXPECT_FALSE(FindServedMount(holder).has_value());
}

}  // namespace
}  // namespace weightfs::cli
