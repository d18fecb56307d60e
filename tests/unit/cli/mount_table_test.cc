#include "cli/mount_table.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tests/unit/meta/temporary_directory.h"

namespace weightfs::cli {
namespace {

TEST(MountTableTest, ReadsALineOfWeightfs) {
  const auto entry = ParseMountInfo(
      "61 29 0:47 / /mnt/tensors rw,nosuid shared:5 - fuse.weightfs /srv/tensors rw,user_id=0,group_id=0");
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->store, "/srv/tensors");
  EXPECT_EQ(entry->directory, "/mnt/tensors");
  EXPECT_EQ(entry->device, "0:47");
  EXPECT_EQ(entry->options, "rw,user_id=0,group_id=0");
}

TEST(MountTableTest, UndoesTheEscapesOfNames) {
  const auto entry = ParseMountInfo(R"(61 29 0:47 / /mnt/my\040tensors\134x rw - fuse.weightfs /srv/a\011b rw)");
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->directory, "/mnt/my tensors\\x");
  EXPECT_EQ(entry->store, "/srv/a\tb");
}

TEST(MountTableTest, PassesOverOtherFilesystemsAndDamagedLines) {
  EXPECT_FALSE(ParseMountInfo("22 1 254:0 / / rw - ext4 /dev/vda rw").has_value());
  EXPECT_FALSE(ParseMountInfo("22 1 0:3 / /x rw - fuse.sshfs host rw").has_value());
  EXPECT_FALSE(ParseMountInfo("").has_value());
  EXPECT_FALSE(ParseMountInfo("22 1 - fuse.weightfs").has_value());
}

TEST(MountTableTest, ADirectoryWithoutAMountIsNotFound) {
  const TemporaryDirectory scratch;
  const auto mount = FindMount(scratch.path());
  ASSERT_FALSE(mount.has_value());
  EXPECT_EQ(mount.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(FindMountOfStore(scratch.path()).has_value());
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
