// SPDX-License-Identifier: Apache-2.0
#include "client/open/replacement.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "client/handle.h"
#include "common/unique_fd.h"
#include "tests/unit/client/files.h"

namespace weightfs::client {
namespace {

int ErrorOf(const std::string& path) {
  const auto found = FinalPath(path);
  return found.has_value() ? 0 : found.error().error_number();
}

TEST(FinalPathTest, APathThatIsNoLinkIsReturnedUnchanged) {
  const Folder folder;
  WriteFile(folder / "file", RandomBytes(10));
  for (const std::string& path : {folder / "file", folder / "new", folder / "./file", std::string("/"), folder / ""}) {
    EXPECT_EQ(FinalPath(path).value(), path);
  }
  EXPECT_EQ(FinalPath("relative").value(), "relative");
  EXPECT_EQ(ErrorOf(folder / "missing/file"), ENOENT);
  EXPECT_EQ(ErrorOf(folder / "file/below"), ENOTDIR);
}

TEST(FinalPathTest, LinksAreFollowedAsFarAsTheKernelFollowsThem) {
  const Folder folder;
  std::filesystem::create_directory(folder / "sub");
  std::filesystem::create_symlink("sub/second", folder / "first");
  std::filesystem::create_symlink("../third", folder / "sub/second");
  const auto made = std::filesystem::absolute(folder / "new");
  std::filesystem::create_symlink(made, folder / "third");
  EXPECT_EQ(FinalPath(folder / "first").value(), made);
  std::filesystem::create_symlink("ring", folder / "ring");
  EXPECT_EQ(ErrorOf(folder / "ring"), ELOOP);
  for (int links = 1; links <= 41; ++links) {
    std::filesystem::create_symlink(links == 1 ? "end" : std::to_string(links - 1), folder / std::to_string(links));
  }
  WriteFile(folder / "end", RandomBytes(10));
  for (const std::string& path : {folder / "40", folder / "41"}) {
    const UniqueFd opened(open(path.c_str(), O_PATH | O_CLOEXEC));
    EXPECT_EQ(ErrorOf(path), opened ? 0 : errno) << path;
  }
}

// With any setting of fs.protected_symlinks, open(2) and FinalPath must agree.
TEST(FinalPathTest, LinksOfOthersAreRefusedWhereOpenRefusesThem) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to make links of others";
  const Folder folder;
  WriteFile(folder / "target", RandomBytes(10));
  int refused = 0;
  for (const bool dangling : {false, true}) {
    for (const mode_t mode : {0755, 0777, 01755, 01777}) {
      for (const uid_t of_folder : {0, 1000}) {
        for (const uid_t of_link : {0, 1000, 1001}) {
          SCOPED_TRACE(fmt::format("mode {:o} of {}, link of {}, dangling {}", mode, of_folder, of_link, dangling));
          const std::string shared = folder / "shared";
          std::filesystem::create_directory(shared);
          const std::string link = shared + "/link";
          std::filesystem::create_symlink(dangling ? "../none" : "../target", link);
          ASSERT_EQ(lchown(link.c_str(), of_link, of_link), 0);
          ASSERT_EQ(chown(shared.c_str(), of_folder, of_folder), 0);
          ASSERT_EQ(chmod(shared.c_str(), mode), 0);
          const UniqueFd opened(open(link.c_str(), O_RDONLY | O_CLOEXEC));
          const int expected = opened || (dangling && errno == ENOENT) ? 0 : errno;
          EXPECT_EQ(ErrorOf(link), expected);
          if (expected != 0) {
            ++refused;
            Bytes bytes = RandomBytes(100);
            const auto handle = std::move(Handle::Create({}).value());
            const auto written = handle->Write(link, MemoryView(std::span<std::byte>(bytes)), {.atomic = true});
            ASSERT_FALSE(written.has_value());
            EXPECT_EQ(written.error().error_number(), expected);
            EXPECT_FALSE(std::filesystem::exists(folder / "none"));
            EXPECT_EQ(ReadFile(folder / "target"), RandomBytes(10));
          }
          std::filesystem::remove_all(shared);
        }
      }
    }
  }
  std::ifstream setting("/proc/sys/fs/protected_symlinks");
  int is_set = 0;
  if (setting >> is_set && is_set != 0) {
    EXPECT_GT(refused, 0);
  }
}

// A link in /proc/self/fd leads to the open file, whatever its text is.
TEST(FinalPathTest, AFileWithoutANameIsNotReplaced) {
  const Folder folder;
  WriteFile(folder / "file", RandomBytes(10));
  const UniqueFd held(open((folder / "file").c_str(), O_RDWR | O_CLOEXEC));
  const std::string path = fmt::format("/proc/self/fd/{}", held.get());
  const auto handle = std::move(Handle::Create({}).value());
  Bytes bytes = RandomBytes(100, 2);
  const MemoryView view{std::span<std::byte>(bytes)};
  ASSERT_TRUE(handle->Write(path, view, {.atomic = true}).has_value());
  EXPECT_EQ(ReadFile(folder / "file"), bytes);
  // The descriptor refers to the replaced file, which has no name now.
  const auto nameless = handle->Write(path, view, {.atomic = true});
  ASSERT_FALSE(nameless.has_value());
  EXPECT_EQ(nameless.error().error_number(), ENOENT);
  EXPECT_EQ(folder.entries(), 1U);
}

}  // namespace
}  // namespace weightfs::client
