// SPDX-License-Identifier: Apache-2.0
#include "client/open/opened_file.h"

#include <gtest/gtest.h>

#include <fmt/format.h>
#include <grp.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include <cerrno>

#include "common/umask.h"
#include "tests/unit/client/files.h"

namespace weightfs::client {
namespace {

using Direction = Operation::Direction;

OpenedFile::Options ToWrite(std::string path, uint64_t size) {
  return {.direction = Direction::kWrite, .path = std::move(path), .size = size, .whole_file = true};
}

std::unique_ptr<OpenedFile> Prepared(const OpenedFile::Options& options) {
  auto target = OpenedFile::Open(options).value();
  EXPECT_TRUE(target->Prepare().has_value());
  return target;
}

int ErrorOf(const OpenedFile::Options& options) {
  const auto target = OpenedFile::Open(options);
  if (!target.has_value()) return target.error().error_number();
  const auto prepared = (*target)->Prepare();
  return prepared.has_value() ? 0 : prepared.error().error_number();
}

void WriteAll(const Access& target, const Bytes& bytes) {
  int error_number = 0;
  ASSERT_EQ(pwrite(target.Buffered(&error_number), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
}

TEST(OpenedFileTest, TheUmaskDecidesTheModeOfANewFile) {
  const Folder folder;
  for (const mode_t mask : {022U, 077U, 002U}) {
    const mode_t before = umask(mask);
    EXPECT_EQ(CurrentUmask(), mask);
    for (const bool atomic : {false, true}) {
      const std::string path = folder / fmt::format("{}.{}", mask, atomic);
      auto options = ToWrite(path, 4096);
      options.atomic = atomic;
      const auto target = Prepared(options);
      ASSERT_TRUE(target->Finish(true).has_value());
      struct stat status {};
      ASSERT_EQ(stat(path.c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 07777, 0666 & ~mask);
    }
    umask(before);
  }
}

TEST(OpenedFileTest, AFailedWholeWriteRemovesTheFileThatItCreated) {
  const Folder folder;
  for (const uint64_t size : {uint64_t{10}, uint64_t{4096}, uint64_t{16} << 20}) {
    const auto target = Prepared(ToWrite(folder / "new", size));
    EXPECT_EQ(folder.entries(), 1U);
    ASSERT_TRUE(target->Finish(false).has_value());
    EXPECT_EQ(folder.entries(), 0U);
  }
}

TEST(OpenedFileTest, AFailedWriteIntoAnOldFileKeepsItsSize) {
  const Folder folder;
  WriteFile(folder / "old", RandomBytes(5000));
  const auto target = Prepared(ToWrite(folder / "old", 16 << 20));
  ASSERT_TRUE(target->Finish(false).has_value());
  EXPECT_EQ(ReadFile(folder / "old"), RandomBytes(5000));
}

// The file is then not what this write made of it.
TEST(OpenedFileTest, AFailedWriteKeepsWhatAnotherWriterHasWrittenAfterPrepare) {
  const Folder folder;
  const auto fail = [&](uint64_t size, bool elsewhere, const Bytes& others) {
    const auto target = Prepared(ToWrite(folder / "file", size));
    if (elsewhere) target->WriteElsewhere();
    if (!others.empty()) WriteFile(folder / "file", others);
    EXPECT_TRUE(target->Finish(false).has_value());
    return std::filesystem::exists(folder / "file") ? ReadFile(folder / "file") : Bytes();
  };
  for (const uint64_t old : {0, 3000, 9000}) {
    for (const bool elsewhere : {false, true}) {
      SCOPED_TRACE(fmt::format("old {} elsewhere {}", old, elsewhere));
      std::filesystem::remove(folder / "file");
      if (old > 0) WriteFile(folder / "file", RandomBytes(old));
      EXPECT_EQ(fail(8000, elsewhere, Bytes()).size(), old);
      EXPECT_EQ(fail(8000, elsewhere, RandomBytes(10'000, 2)), RandomBytes(10'000, 2));
      if (!elsewhere) continue;
      std::filesystem::remove(folder / "file");
      if (old > 0) WriteFile(folder / "file", RandomBytes(old));
      EXPECT_EQ(fail(8000, elsewhere, RandomBytes(8000, 2)), RandomBytes(8000, 2));
    }
  }
}

TEST(OpenedFileTest, ADroppedFileRemovesTheFileThatItCreated) {
  const Folder folder;
  { const auto target = Prepared(ToWrite(folder / "new", 4096)); }
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(OpenedFileTest, AnAtomicWriteIsVisibleOnlyOnceItHasFinished) {
  const Folder folder;
  WriteFile(folder / "old", RandomBytes(5000));
  std::filesystem::permissions(folder / "old", std::filesystem::perms(0640));
  std::filesystem::create_symlink("old", folder / "link");
  auto options = ToWrite(folder / "link", 100);
  options.atomic = true;
  {
    const auto target = Prepared(options);
    WriteAll(*target, RandomBytes(100, 2));
    EXPECT_EQ(ReadFile(folder / "old").size(), 5000U);
    ASSERT_TRUE(target->Finish(true).has_value());
  }
  EXPECT_EQ(ReadFile(folder / "old"), RandomBytes(100, 2));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(std::filesystem::status(folder / "old").permissions(), std::filesystem::perms(0640));
  { const auto dropped = Prepared(options); }
  EXPECT_EQ(folder.entries(), 2U);
}

// Replaces the file by an atomic write as this user and group. Returns the status of the new file.
struct stat Replace(const Folder& folder, uid_t user, gid_t group) {
  const pid_t child = fork();
  if (child == 0) {
    auto options = ToWrite("file", 100);
    options.atomic = true;
    if (chdir((folder / ".").c_str()) != 0 || setgroups(1, &group) != 0 || setresgid(user, user, user) != 0 ||
        setresuid(user, user, user) != 0) {
      _exit(1);
    }
    const auto target = OpenedFile::Open(options);
    _exit(target.has_value() && (*target)->Prepare().has_value() && (*target)->Finish(true).has_value() ? 0 : 2);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  struct stat now {};
  EXPECT_EQ(stat((folder / "file").c_str(), &now), 0);
  return now;
}

TEST(OpenedFileTest, AnAtomicWriteKeepsTheModeAndTheOwnerAndGroupIfPermitted) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to write as others";
  const Folder folder;
  ASSERT_EQ(chmod((folder / ".").c_str(), 0777), 0);
  const auto make = [&](mode_t mode) {
    WriteFile(folder / "file", RandomBytes(10));
    ASSERT_EQ(chown((folder / "file").c_str(), 1001, 2000), 0);
    ASSERT_EQ(chmod((folder / "file").c_str(), mode), 0);
  };
  make(0660);
  struct stat now = Replace(folder, 1002, 2000);
  EXPECT_EQ(now.st_uid, 1002U);
  EXPECT_EQ(now.st_gid, 2000U);
  EXPECT_EQ(now.st_mode & 07777, 0660U);
  make(06771);
  now = Replace(folder, 0, 0);
  EXPECT_EQ(now.st_uid, 1001U);
  EXPECT_EQ(now.st_gid, 2000U);
  EXPECT_EQ(now.st_mode & 07777, 06771U);
  // A program must not run with the identity of a user who did not write it.
  make(06772);
  EXPECT_EQ(Replace(folder, 1002, 1002).st_mode & 07777, 0772U);
}

TEST(OpenedFileTest, AnAtomicWriteCreatesTheTargetOfALinkAndRefusesALinkLoop) {
  const Folder folder;
  std::filesystem::create_symlink("new", folder / "link");
  std::filesystem::create_symlink("ring", folder / "ring");
  auto options = ToWrite(folder / "link", 100);
  options.atomic = true;
  {
    const auto target = Prepared(options);
    WriteAll(*target, RandomBytes(100));
    ASSERT_TRUE(target->Finish(true).has_value());
  }
  EXPECT_EQ(ReadFile(folder / "new"), RandomBytes(100));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  options.path = folder / "ring";
  EXPECT_EQ(ErrorOf(options), ELOOP);
  EXPECT_EQ(folder.entries(), 3U);
}

TEST(OpenedFileTest, AFailedWriteKeepsAFileThatAnotherOneWrote) {
  const Folder folder;
  const auto first = OpenedFile::Open(ToWrite(folder / "new", 100)).value();
  {
    const auto second = Prepared(ToWrite(folder / "new", 200));
    WriteAll(*second, RandomBytes(200));
    ASSERT_TRUE(second->Finish(true).has_value());
  }
  EXPECT_TRUE(first->Prepare().has_value());
  EXPECT_TRUE(first->Finish(false).has_value());
  EXPECT_EQ(ReadFile(folder / "new"), RandomBytes(200));
}

TEST(OpenedFileTest, AFileThatAnotherTargetRemovedIsStale) {
  const Folder folder;
  const auto first = OpenedFile::Open(ToWrite(folder / "new", 100)).value();
  const auto second = OpenedFile::Open(ToWrite(folder / "new", 100)).value();
  EXPECT_TRUE(first->Finish(false).has_value());
  EXPECT_EQ(second->Prepare().error().error_number(), ESTALE);
}

TEST(OpenedFileTest, AWriteWhoseFileAnotherTargetRemovesFails) {
  const Folder folder;
  const auto first = Prepared(ToWrite(folder / "new", 100)), second = Prepared(ToWrite(folder / "new", 100));
  first->WriteElsewhere();
  EXPECT_TRUE(first->Finish(false).has_value());
  WriteAll(*second, RandomBytes(100));
  EXPECT_EQ(second->Finish(true).error().error_number(), ESTALE);
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
}

TEST(OpenedFileTest, AWriteAtAnOffsetThatNeverBeginsLeavesNothing) {
  const Folder folder;
  auto options = ToWrite(folder / "new", 4 * kMiB);
  options.whole_file = false;
  options.offset = 4096;
  Prepared(options).reset();
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
  {
    const auto dropped = Prepared(options), other = Prepared(ToWrite(folder / "new", 100));
    WriteAll(*other, RandomBytes(100));
    EXPECT_TRUE(other->Finish(true).has_value());
  }
  EXPECT_EQ(ReadFile(folder / "new"), RandomBytes(100)) << "of another write";
  WriteFile(folder / "old", RandomBytes(10));
  options.path = folder / "old";
  Prepared(options).reset();
  EXPECT_EQ(std::filesystem::file_size(folder / "old"), 10U);
}

TEST(OpenedFileTest, WhatDoesNotFitIsRefusedAndAHoleIsNoSpace) {
  const Folder folder;
  struct statfs filesystem {};
  ASSERT_EQ(statfs((folder / "").c_str(), &filesystem), 0);
  const uint64_t free = filesystem.f_bfree * static_cast<uint64_t>(filesystem.f_bsize);
  const uint64_t beyond = RoundUp(2 * free, kMiB);
  if (filesystem.f_type != EXT4_SUPER_MAGIC || beyond > (uint64_t{1} << 43)) GTEST_SKIP() << "needs TMPDIR on ext4";
  WriteFile(folder / "file", RandomBytes(10));
  auto options = ToWrite(folder / "file", 4 * kMiB);
  options.whole_file = false;
  options.offset = beyond;
  EXPECT_TRUE(Prepared(options)->Reserve().has_value());
  std::filesystem::resize_file(folder / "file", 10);
  options.size = beyond;
  options.offset = 0;
  EXPECT_EQ(Prepared(options)->Reserve().error().error_number(), ENOSPC);
  EXPECT_EQ(std::filesystem::file_size(folder / "file"), 10U);
}

TEST(OpenedFileTest, AWholeWriteTruncatesBytesAppendedBeforePrepare) {
  const Folder folder;
  const auto target = OpenedFile::Open(ToWrite(folder / "file", 100)).value();
  std::filesystem::resize_file(folder / "file", 9000);
  ASSERT_TRUE(target->Prepare().has_value());
  ASSERT_TRUE(target->Finish(true).has_value());
  EXPECT_EQ(std::filesystem::file_size(folder / "file"), 100U);
}

TEST(OpenedFileTest, AWholeWriteKeepsBytesAppendedAfterPrepare) {
  const Folder folder;
  WriteFile(folder / "file", RandomBytes(5000));
  const auto target = Prepared(ToWrite(folder / "file", 100));
  std::filesystem::resize_file(folder / "file", 9000);
  ASSERT_TRUE(target->Finish(true).has_value());
  EXPECT_EQ(std::filesystem::file_size(folder / "file"), 9000U);
}

TEST(OpenedFileTest, ImpossibleRequestsAreRefusedBeforeAnyFileChanges) {
  const Folder folder;
  EXPECT_EQ(ErrorOf({.path = folder / "missing", .size = 1}), ENOENT);
  EXPECT_EQ(ErrorOf({.path = folder / ".", .size = 1}), EISDIR);
  EXPECT_EQ(ErrorOf(ToWrite(folder / ".", 1)), EISDIR);
  EXPECT_EQ(ErrorOf({.descriptor = 9999, .size = 1}), EBADF);
  EXPECT_EQ(ErrorOf({.path = folder / "x", .offset = UINT64_MAX, .size = 2}), EINVAL);
  EXPECT_EQ(ErrorOf({.direction = Direction::kWrite, .path = folder / "x", .offset = 1, .size = 2, .whole_file = true}),
            EINVAL);
  EXPECT_EQ(ErrorOf({.direction = Direction::kWrite, .path = folder / "x", .size = 2, .atomic = true}), EINVAL);
  WriteFile(folder / "ten", RandomBytes(10));
  EXPECT_EQ(ErrorOf({.path = folder / "ten", .offset = 5, .size = 6}), ENODATA);
  const int only_reads = open((folder / "ten").c_str(), O_RDONLY);
  EXPECT_EQ(ErrorOf({.direction = Direction::kWrite, .descriptor = only_reads, .size = 1}), EBADF);
  close(only_reads);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(ErrorOf({.descriptor = ends[0], .size = 1}), ESPIPE);
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(OpenedFileTest, OpeningAPipeFailsAtOnce) {
  const Folder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const auto direction : {Operation::Direction::kRead, Operation::Direction::kWrite}) {
    const auto opened = OpenedFile::Open({.direction = direction, .path = folder / "pipe", .size = 4096});
    ASSERT_FALSE(opened.has_value());
    EXPECT_EQ(opened.error().error_number(), ESPIPE);
  }
}

}  // namespace
}  // namespace weightfs::client
