// SPDX-License-Identifier: Apache-2.0
#include "common/guarded_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/file_owner.h"
#include "tests/support/temporary_directory.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kStranger = 65533;

class GuardedDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(path_ / "d");
    before_ = umask(022);
  }
  void TearDown() override { umask(before_); }

  fs::path At(const std::string& name) const { return path_ / "d" / name; }
  void Write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  std::string Read(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  GuardedDirectory Open() { return GuardedDirectory::Open((path_ / "d").string()).value(); }
  static mode_t ModeOf(const fs::path& path) {
    struct stat status = {};
    EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
    return status.st_mode & 07777;
  }
  static uid_t OwnerOf(const fs::path& path) {
    struct stat status = {};
    EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
    return status.st_uid;
  }
  // Expects that every way to open the file fails with this code, and that the message names the file.
  void ExpectRefused(const std::string& name, ErrorCode code, const std::string& saying) {
    const auto check = [&](const Error& error) {
      EXPECT_EQ(error.code, code) << error.what;
      EXPECT_NE(error.what.find(At(name).string()), std::string::npos) << error.what;
      EXPECT_NE(error.what.find(saying), std::string::npos) << error.what;
    };
    for (const int flags : {O_RDONLY, O_RDWR, O_RDWR | O_CREAT, O_WRONLY | O_CREAT | O_APPEND}) {
      const auto opened = Open().OpenFile(name, flags);
      ASSERT_FALSE(opened.has_value()) << name << " with flags " << flags;
      check(opened.error());
    }
    check(Open().ReadFile(name, 10).error());
    check(Open().CheckFile(name).error());
    check(Open().ListFiles().error());
  }

  const TemporaryDirectory scratch_;
  const fs::path path_ = scratch_.path();
  mode_t before_ = 0;
};

TEST_F(GuardedDirectoryTest, AFileIsMadeOnceForItsOwnerAloneWhateverTheUmask) {
  for (const mode_t mask : {0, 022, 0777}) {
    umask(mask);
    const auto made = Open().OpenFile("f", O_RDWR | O_CREAT);
    ASSERT_TRUE(made.has_value()) << made.error().what;
    EXPECT_EQ(ModeOf(At("f")), 0600U);
    ASSERT_EQ(write(made->get(), "x", 1), 1);
    EXPECT_EQ(Open().ReadFile("f", 100).value(), "x");
    ASSERT_TRUE(Open().OpenFile("f", O_RDWR | O_CREAT).has_value());
    EXPECT_EQ(Read(At("f")), "x") << "it is not emptied";
    fs::remove(At("f"));
  }
  EXPECT_EQ(Open().OpenFile("f", O_RDWR).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Open().ReadFile("f", 1).error().code, ErrorCode::kNotFound);
}

TEST_F(GuardedDirectoryTest, AtMostTheLimitIsRead) {
  Write(At("f"), "0123456789");
  EXPECT_EQ(Open().ReadFile("f", 4).value(), "0123");
  EXPECT_EQ(Open().ReadFile("f", 100).value(), "0123456789");
}

TEST_F(GuardedDirectoryTest, LinksAreNotFollowed) {
  Write(path_ / "target", "years of work");
  fs::create_symlink(path_ / "target", At("link"));
  ExpectRefused("link", ErrorCode::kPermission, "symbolic link");
  fs::remove(At("link"));
  fs::create_symlink(path_ / "nowhere", At("link"));
  ExpectRefused("link", ErrorCode::kPermission, "symbolic link");
  EXPECT_FALSE(fs::exists(path_ / "nowhere"));
  EXPECT_EQ(Read(path_ / "target"), "years of work");
}

TEST_F(GuardedDirectoryTest, OnlyRegularFilesAreOpenedAndNothingWaits) {
  ASSERT_EQ(mkfifo(At("fifo").c_str(), 0600), 0);
  ExpectRefused("fifo", ErrorCode::kPermission, "a FIFO");
  fs::remove(At("fifo"));
  fs::create_directory(At("directory"));
  ExpectRefused("directory", ErrorCode::kPermission, "a directory");
  fs::remove(At("directory"));
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(At("socket").string().size(), sizeof(address.sun_path));
  At("socket").string().copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ExpectRefused("socket", ErrorCode::kPermission, "a socket");
}

TEST_F(GuardedDirectoryTest, AFileWithASecondNameIsReadAndNotWritten) {
  Write(path_ / "other", "years of work");
  fs::create_hard_link(path_ / "other", At("f"));
  EXPECT_EQ(Open().ReadFile("f", 100).value(), "years of work");
  const auto opened = Open().OpenFile("f", O_RDWR | O_CREAT);
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kPermission);
  EXPECT_NE(opened.error().what.find("one of 2 names"), std::string::npos) << opened.error().what;
}

TEST_F(GuardedDirectoryTest, AFileOfAStrangerIsRefusedAndOneOfTheDirectorysOwnerIsNot) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED LOUDLY: needs root to give files away";
  Write(At("f"), "x");
  ASSERT_EQ(chown(At("f").c_str(), kStranger, kStranger), 0);
  ExpectRefused("f", ErrorCode::kPermission, "belongs to user 65533");
  ASSERT_EQ(chown((path_ / "d").c_str(), kStranger, kStranger), 0);
  EXPECT_EQ(Open().ReadFile("f", 10).value(), "x");
}

TEST_F(GuardedDirectoryTest, ADirectoryBelowIsNoLinkAndNoStrangers) {
  fs::create_directory(path_ / "elsewhere");
  fs::create_directory_symlink(path_ / "elsewhere", At("meta"));
  EXPECT_EQ(Open().OpenDirectory("meta").error().code, ErrorCode::kPermission);
  fs::remove(At("meta"));
  EXPECT_EQ(Open().OpenDirectory("meta").error().code, ErrorCode::kNotFound);
  Write(At("meta"), "");
  EXPECT_EQ(Open().OpenDirectory("meta").error().code, ErrorCode::kPermission);
  fs::remove(At("meta"));
  fs::create_directory(At("meta"));
  EXPECT_TRUE(Open().OpenDirectory("meta").has_value());
  if (geteuid() != 0) return;
  ASSERT_EQ(chown(At("meta").c_str(), kStranger, kStranger), 0);
  EXPECT_EQ(Open().OpenDirectory("meta").error().code, ErrorCode::kPermission);
}

TEST_F(GuardedDirectoryTest, ThePathToTheDirectoryMayContainLinks) {
  fs::create_directory_symlink(path_ / "d", path_ / "link");
  Write(At("f"), "x");
  EXPECT_EQ(GuardedDirectory::Open((path_ / "link").string()).value().ReadFile("f", 10).value(), "x");
  EXPECT_EQ(GuardedDirectory::Open((path_ / "d/f").string()).error().code, ErrorCode::kNotDirectory);
  EXPECT_EQ(GuardedDirectory::Open((path_ / "nowhere").string()).error().code, ErrorCode::kNotFound);
}

TEST_F(GuardedDirectoryTest, ListsEveryFile) {
  EXPECT_TRUE(Open().ListFiles().value().empty());
  fs::create_directory(At("lost+found"));
  for (const char* name : {"b", "a", ".hidden"}) Write(At(name), "");
  auto names = Open().ListFiles().value();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{".hidden", "a", "b"}));
}

TEST_F(GuardedDirectoryTest, PermissionsOfOthersAreRemoved) {
  Write(At("f"), "x");
  fs::permissions(At("f"), fs::perms(0664));
  fs::permissions(path_ / "d", fs::perms(0755));
  Open().RestrictFile("f");
  Open().RestrictFile("missing");
  Open().Restrict();
  EXPECT_EQ(ModeOf(At("f")), 0600U);
  EXPECT_EQ(ModeOf(path_ / "d"), 0700U);
  fs::create_symlink(path_ / "d" / "f", At("link"));
  fs::permissions(At("f"), fs::perms(0664));
  Open().RestrictFile("link");
  EXPECT_EQ(ModeOf(At("f")), 0664U) << "a link leads anywhere";
}

TEST_F(GuardedDirectoryTest, LocksStayWhenPermissionsAreRemoved) {
  Write(At("f"), "x");
  fs::permissions(At("f"), fs::perms(0666));
  const UniqueFd file(open(At("f").c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  ASSERT_EQ(fcntl(file.get(), F_SETLK, &lock), 0);
  Open().RestrictFile("f");
  EXPECT_EQ(ModeOf(At("f")), 0600U);
  // A separate open file description conflicts with the lock of the process.
  const UniqueFd other(open(At("f").c_str(), O_RDWR | O_CLOEXEC));
  lock.l_type = F_WRLCK;
  ASSERT_EQ(fcntl(other.get(), F_OFD_GETLK, &lock), 0);
  EXPECT_EQ(lock.l_type, F_WRLCK);
}

TEST_F(GuardedDirectoryTest, RootLeavesItsFilesToTheOwnerOfTheDirectory) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED LOUDLY: needs root to give files away";
  ASSERT_EQ(chown((path_ / "d").c_str(), kStranger, kStranger), 0);
  ASSERT_TRUE(Open().OpenFile("made", O_RDWR | O_CREAT).has_value());
  EXPECT_EQ(OwnerOf(At("made")), kStranger);
  ASSERT_TRUE(Open().MakeDirectory("below").has_value());
  EXPECT_EQ(OwnerOf(At("below")), kStranger);
  EXPECT_EQ(ModeOf(At("below")), 0700U);
  EXPECT_EQ(Open().MakeDirectory("below").error().code, ErrorCode::kExists);
  Write(At("after"), "x");
  EXPECT_EQ(OwnerOf(At("after")), 0U) << "the thread is root's again";
  fs::permissions(path_ / "d", fs::perms(0500));
  ASSERT_TRUE(Open().MakeDirectory("refused").has_value());
  EXPECT_EQ(OwnerOf(At("refused")), 0U) << "its owner may not write there";
  ASSERT_TRUE(Open().OpenFile("root's", O_RDWR | O_CREAT).has_value());
  EXPECT_EQ(OwnerOf(At("root's")), 0U) << "nothing is given away after it was made";
}

TEST_F(GuardedDirectoryTest, PermissionsAreRemovedFromADirectoryThatItsOwnerMayNotList) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED LOUDLY: needs root to become another user";
  ASSERT_EQ(chown((path_ / "d").c_str(), kStranger, kStranger), 0);
  fs::permissions(path_ / "d", fs::perms(0370));
  const GuardedDirectory directory = Open();
  CreateAsOwner(kStranger, kStranger, [&] {
    directory.Restrict();
    return true;
  });
  EXPECT_EQ(ModeOf(path_ / "d"), 0300U);
}

TEST_F(GuardedDirectoryTest, RootGivesAwayNothingThatTheOwnerOfTheDirectoryMovedThere) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED LOUDLY: needs root to give files away";
  ASSERT_EQ(chown((path_ / "d").c_str(), kStranger, kStranger), 0);
  Write(path_ / "moved", "root's");
  fs::permissions(path_ / "moved", fs::perms(0600));
  fs::rename(path_ / "moved", At("moved"));
  ASSERT_TRUE(Open().OpenFile("moved", O_RDWR | O_CREAT).has_value());
  Open().RestrictFile("moved");
  EXPECT_EQ(OwnerOf(At("moved")), 0U);
  Write(path_ / "shared", "root's");
  fs::permissions(path_ / "shared", fs::perms(0644));
  fs::create_hard_link(path_ / "shared", At("link"));
  Open().RestrictFile("link");
  EXPECT_EQ(OwnerOf(path_ / "shared"), 0U);
  EXPECT_EQ(ModeOf(path_ / "shared"), 0644U);
}

TEST_F(GuardedDirectoryTest, AFileOfRootIsRefusedWithTheCommandThatGivesItToTheOwner) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED LOUDLY: needs root to become another user";
  fs::permissions(path_, fs::perms(0755));
  ASSERT_EQ(chown((path_ / "d").c_str(), kStranger, kStranger), 0);
  Write(At("f"), "x");
  ASSERT_EQ(seteuid(kStranger), 0);
  const auto checked = Open().CheckFile("f");
  ASSERT_EQ(seteuid(0), 0);
  ASSERT_FALSE(checked.has_value());
  EXPECT_EQ(checked.error().code, ErrorCode::kPermission);
  EXPECT_NE(checked.error().what.find("belongs to root"), std::string::npos) << checked.error().what;
  EXPECT_NE(checked.error().what.find("chown -hR --reference="), std::string::npos) << checked.error().what;
}

}  // namespace
}  // namespace weightfs
