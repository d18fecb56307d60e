// SPDX-License-Identifier: Apache-2.0
#include "remote/pull_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

namespace weightfs::remote {
namespace {

namespace fs = std::filesystem;

class PullDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "pull-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  std::unique_ptr<PullDirectory> Open() {
    auto directory = PullDirectory::Create(target());
    EXPECT_TRUE(directory.has_value()) << directory.error().what;
    return std::move(*directory);
  }
  ErrorCode Refusal(const fs::path& path) {
    const auto directory = PullDirectory::Create(path);
    return directory ? ErrorCode{} : directory.error().code;
  }
  size_t Entries() { return static_cast<size_t>(std::distance(fs::directory_iterator(root_), {})); }
  fs::path target() const { return root_ / "target"; }

  fs::path root_;
};

TEST_F(PullDirectoryTest, TheUmaskAppliesToTheModes) {
  const mode_t before = umask(027);
  auto directory = Open();
  auto file = directory->MakeFile("file");
  ASSERT_TRUE(file.has_value());
  ASSERT_TRUE(directory->Finish(FileEntry{.path = "file", .mode = 0666}, std::move(*file)));
  ASSERT_TRUE(directory->Finish(DirectoryEntry{.path = "", .mode = 0777}));
  ASSERT_TRUE(directory->Commit().has_value());
  umask(before);
  EXPECT_EQ(fs::status(target()).permissions(), fs::perms(0750));
  EXPECT_EQ(fs::status(target() / "file").permissions(), fs::perms(0640));
}

TEST_F(PullDirectoryTest, AppearsWithItsAttributesWhenItIsCommitted) {
  auto directory = Open();
  ASSERT_TRUE(directory->MakeDirectory("a").has_value());
  auto file = directory->MakeFile("a/file");
  ASSERT_TRUE(file.has_value());
  ASSERT_EQ(write(file->get(), "text", 4), 4);
  ASSERT_TRUE(directory->MakeLink({"a/link", "file"}).has_value());
  ASSERT_TRUE(directory->Finish(FileEntry{.path = "a/file", .mode = 04755, .modified_ns = -1}, std::move(*file)));
  ASSERT_TRUE(directory->Finish(DirectoryEntry{.path = "a", .mode = 0500, .modified_ns = 5}));
  ASSERT_TRUE(directory->Finish(DirectoryEntry{.path = "", .mode = 0755, .modified_ns = 7'000'000'001}));
  EXPECT_FALSE(fs::exists(target()));
  ASSERT_TRUE(directory->Commit().has_value());
  directory.reset();
  struct stat status {};
  ASSERT_EQ(stat(target().c_str(), &status), 0);
  EXPECT_EQ(status.st_mtim.tv_sec, 7);
  EXPECT_EQ(status.st_mtim.tv_nsec, 1);
  ASSERT_EQ(stat((target() / "a/link").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0755U) << "the bit that runs it as another user is dropped";
  EXPECT_EQ(status.st_mtim.tv_sec, -1);
  EXPECT_EQ(status.st_mtim.tv_nsec, 999'999'999);
  EXPECT_EQ(Entries(), 1U);
}

TEST_F(PullDirectoryTest, LeavesNothingWithoutACommit) {
  {
    auto directory = Open();
    ASSERT_TRUE(directory->MakeDirectory("a").has_value());
    ASSERT_TRUE(directory->MakeDirectory("a/b").has_value());
    ASSERT_TRUE(directory->MakeFile("a/b/file").has_value());
    ASSERT_TRUE(directory->MakeLink({"a/out", "/"}).has_value());
    ASSERT_TRUE(directory->Finish(DirectoryEntry{.path = "a/b", .mode = 0}));
  }
  EXPECT_EQ(Entries(), 0U);
}

TEST_F(PullDirectoryTest, NeverFollowsALink) {
  fs::create_directory(root_ / "outside");
  auto directory = Open();
  ASSERT_TRUE(directory->MakeLink({"link", (root_ / "outside").string()}).has_value());
  EXPECT_FALSE(directory->MakeFile("link/file").has_value());
  EXPECT_FALSE(directory->MakeDirectory("link/directory").has_value());
  EXPECT_FALSE(directory->MakeFile("link").has_value());
  EXPECT_FALSE(directory->Finish(DirectoryEntry{.path = "link"}).has_value());
  EXPECT_TRUE(fs::is_empty(root_ / "outside"));
}

TEST_F(PullDirectoryTest, RefusesTargetsThatExist) {
  std::ofstream(root_ / "file") << "x";
  fs::create_directories(root_ / "full/below");
  fs::create_directory_symlink("full", root_ / "link");
  EXPECT_EQ(Refusal(root_ / "file"), ErrorCode::kExists);
  EXPECT_EQ(Refusal(root_ / "link"), ErrorCode::kExists);
  EXPECT_EQ(Refusal(root_ / "full"), ErrorCode::kNotEmpty);
  EXPECT_EQ(Refusal(root_ / "missing/target"), ErrorCode::kNotFound);
  EXPECT_EQ(Refusal(root_ / "file/target"), ErrorCode::kNotDirectory);
  EXPECT_EQ(Refusal(root_ / ".."), ErrorCode::kInvalid);
  EXPECT_EQ(Refusal("/"), ErrorCode::kInvalid);
  EXPECT_EQ(Refusal(""), ErrorCode::kInvalid);
  EXPECT_EQ(Entries(), 3U);
}

TEST_F(PullDirectoryTest, ATargetThatAppearsMeanwhileIsKept) {
  auto directory = Open();
  fs::create_directory(target());
  EXPECT_FALSE(directory->Commit().has_value());
  directory.reset();
  EXPECT_TRUE(fs::is_empty(target()));
  EXPECT_EQ(Entries(), 1U);
}

TEST_F(PullDirectoryTest, ReplacesAnEmptyDirectoryThatStaysEmpty) {
  fs::create_directory(target());
  auto directory = Open();
  ASSERT_TRUE(directory->MakeFile("file").has_value());
  std::ofstream(target() / "mine") << "x";
  EXPECT_FALSE(directory->Commit().has_value());
  EXPECT_TRUE(fs::exists(target() / "mine"));
  fs::remove(target() / "mine");
  ASSERT_TRUE(directory->Commit().has_value());
  EXPECT_TRUE(fs::exists(target() / "file"));
}

TEST_F(PullDirectoryTest, RemovesWhatAKilledProcessLeftAndNothingElse) {
  fs::create_directories(root_ / ".target.weightfs-pull-abcdefgh/a/b");
  fs::create_directories(root_ / ".target.weightfs-pull-abcdefghi");
  fs::create_directories(root_ / ".other.weightfs-pull-abcdefgh");
  std::ofstream(root_ / ".target.weightfs-pull-ijklmnop") << "x";
  auto running = Open();
  auto next = Open();
  EXPECT_FALSE(fs::exists(root_ / ".target.weightfs-pull-abcdefgh"));
  EXPECT_TRUE(fs::exists(running->temporary())) << "it is locked";
  EXPECT_EQ(Entries(), 5U);
}

TEST_F(PullDirectoryTest, ChecksFreeSpace) {
  const auto directory = Open();
  EXPECT_TRUE(directory->CheckSpace(1, 1).has_value());
  EXPECT_EQ(directory->CheckSpace(uint64_t{1} << 60, 1).error().code, ErrorCode::kNoSpace);
}

}  // namespace
}  // namespace weightfs::remote
