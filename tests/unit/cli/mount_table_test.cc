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
  EXPECT_FALSE(FindMountOfStore(scratch.path()).has_value());
}

TEST(MountTableTest, WhatIsNoMountMayBeAStore) {
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

}  // namespace
}  // namespace weightfs::cli
