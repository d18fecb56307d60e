// SPDX-License-Identifier: Apache-2.0
// Files that are being replaced (O_TRUNC) keep their old content until their writers have closed them, whatever others
// do; and a failed write is reported by whatever publishes its file.
#include <gtest/gtest.h>
#include <linux/capability.h>

#include <chrono>
#include <string>

#include "meta/keys.h"
#include "store/file/file.h"
#include "tests/support/result_asserts.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

constexpr size_t kManyEntries = 100'001;  // more than a rename searches in any case

// A store that commits on request only, with the committed file "kept" and the empty directory "d".
class Replacements : public ::testing::Test {
 protected:
  static TestStoreOptions Options() {
    TestStoreOptions options;
    options.store.commit_interval = options.store.close_delay = std::chrono::hours(1);
    options.store.resident_inodes = 4;
    return options;
  }
  Replacements() : store_(Options()) {
    MakeDirectory("d");
    EXPECT_TRUE(store_.WriteFile("kept", "old"));
    EXPECT_TRUE(store_->SyncAll());
  }
  void MakeDirectory(std::string_view name) {
    ASSERT_OK(store_->names().Create(kRootInode, name, {.mode = S_IFDIR | 0755}));
  }
  void MakeLink(std::string_view name, std::string_view target) {
    ASSERT_OK(
        store_->names().Create(kRootInode, name, {.mode = S_IFLNK | 0777, .symlink = std::string(target)}));
  }
  // Adds names of the file "kept" to the directory, in the catalog alone.
  void AddEntries(std::string_view directory, size_t count) {
    KvBatch batch;
    const EntryRecord record{store_.Resolve("kept").value(), S_IFREG};
    const InodeId parent = store_.Resolve(directory).value();
    for (size_t i = 0; i < count; ++i) batch.Put(keys::Entry(parent, std::to_string(i)), record.Encode());
    ASSERT_OK(store_.kv().Write(batch));
  }
  InodePtr ReplaceHalf() {
    InodePtr file = store_.OpenPath("kept", /*truncate=*/true).value();
    EXPECT_TRUE(store_.WriteAt(file, 0, "half"));
    return file;
  }
  // Creates a file whose write fails, and closes it without a report.
  void Lose(std::string_view path) {
    ASSERT_OK(store_->SyncAll());
    store_.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
    const InodePtr file = store_.Create(path).value();
    ASSERT_OK(store_.WriteAt(file, 0, Pattern(1, 5000)));
    store_->CloseFile(file);
    EXPECT_FALSE(store_->SyncAll().has_value());
  }
  InodePtr ReplaceHalfAfterAFailure() {
    EXPECT_TRUE(store_->SyncAll());
    store_.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
    const InodePtr file = store_.OpenPath("kept").value();
    EXPECT_TRUE(store_.WriteAt(file, 0, Pattern(1, 5000)));
    EXPECT_FALSE(store_->SyncAll().has_value());
    EXPECT_FALSE(store_->OpenFile(file->id, /*truncate=*/true, /*writes=*/true).has_value()) << "the error, once";
    return ReplaceHalf();
  }
  Result<void> Rename(std::string_view from, std::string_view to) {
    return store_->names().Rename(kRootInode, from, kRootInode, to, RenameMode::kReplace);
  }
  // After a fsync of the root directory, which commits no file.
  std::string ContentAfterKill(std::string_view path) {
    static_cast<void>(store_->Sync(store_->inodes().Get(kRootInode).value()).has_value());
    TestStore after(store_.journal().ImageAt(store_.journal().size(), {.kind = CrashOptions::Kind::kProcessKill}),
                    Options());
    EXPECT_TRUE(after.opened());
    return after.ReadPath(path).value_or("unreadable");
  }

  TestStore store_;
  Credentials root_{.uid = 0, .capabilities = uint64_t{1} << CAP_FOWNER};
  std::string failed_;
};

TEST_F(Replacements, ContentThatWasNotCommittedYetIsCommittedFirst) {
  ASSERT_OK(store_.WriteFile("new", "complete"));
  const InodePtr half = store_.OpenPath("new", /*truncate=*/true).value();
  ASSERT_OK(store_.WriteAt(half, 0, "half"));
  EXPECT_EQ(ContentAfterKill("new"), "complete");
  ASSERT_OK(store_->Sync(half));
  EXPECT_EQ(ContentAfterKill("new"), "half");
}

TEST_F(Replacements, ContentThatWasCommittedInPartIsCommittedFirst) {
  const auto append = [&](std::string_view name, std::string_view text) {
    const InodePtr file = store_.OpenPath(name).value();
    EXPECT_TRUE(store_.WriteAt(file, store_.SizeOf(file), text));
    return file;
  };
  const auto replace = [&](std::string_view name) {
    const InodePtr file = store_.OpenPath(name, /*truncate=*/true).value();
    EXPECT_TRUE(store_.WriteAt(file, 0, "half"));
    return file;
  };
  store_->CloseFile(append("kept", " and appended"));
  const InodePtr kept = replace("kept");
  EXPECT_EQ(ContentAfterKill("kept"), "old and appended");

  const InodePtr created = store_.Create("new").value();
  ASSERT_OK(store_.WriteAt(created, 0, "first "));
  ASSERT_OK(store_->Sync(created));
  ASSERT_OK(store_.WriteAt(created, 6, "second"));
  store_->CloseFile(created);
  const InodePtr other = replace("new");
  EXPECT_EQ(ContentAfterKill("new"), "first second");
  ASSERT_OK(store_->Sync(other));  // in the middle of a replacement
  store_->CloseFile(append("new", " and the rest"));
  store_->CloseFile(other);
  const InodePtr last = replace("new");
  EXPECT_EQ(ContentAfterKill("new"), "half and the rest");
}

TEST_F(Replacements, APublicationCommitsNoReplacementElsewhere) {
  const InodePtr half = ReplaceHalf();
  ASSERT_OK(store_.WriteFile("d/f", "published"));
  Namespace::PublishCall call(store_.Resolve("d").value(), root_, std::nullopt);
  ASSERT_OK(store_->PublishTree(&call));
  EXPECT_EQ(ContentAfterKill("kept"), "old");
  EXPECT_EQ(ContentAfterKill("d/f"), "published");
  ASSERT_OK(store_->UnpublishTree(store_.Resolve("d").value(), root_, &failed_));
  EXPECT_EQ(ContentAfterKill("kept"), "old");
}

TEST_F(Replacements, APublicationDoesNotFailWithWritesElsewhere) {
  ASSERT_OK(store_.WriteFile("d/f", "published"));
  Lose("elsewhere");
  Namespace::PublishCall call(store_.Resolve("d").value(), root_, std::nullopt);
  ASSERT_OK(store_->PublishTree(&call));
  ASSERT_OK(store_->UnpublishTree(store_.Resolve("d").value(), root_, &failed_));
  EXPECT_FALSE(Rename("elsewhere", "e").has_value()) << "the error is still pending";
}

TEST_F(Replacements, APublicationWritesNothingOfFilesElsewhere) {
  ASSERT_OK(store_.WriteFile("d/f", "published"));
  ASSERT_OK(store_->SyncAll());
  store_.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
  const InodePtr elsewhere = store_.Create("elsewhere").value();
  ASSERT_OK(store_.WriteAt(elsewhere, 0, "not yet written"));
  Namespace::PublishCall call(store_.Resolve("d").value(), root_, std::nullopt);
  ASSERT_OK(store_->PublishTree(&call));
  EXPECT_FALSE(store_->Sync(elsewhere).has_value()) << "the device still fails";
  store_->CloseFile(elsewhere);
}

TEST_F(Replacements, RenamingALargeDirectoryCommitsNoReplacement) {
  AddEntries("d", kManyEntries);
  ASSERT_OK(store_.WriteFile("d/f", "settled"));
  const InodePtr half = ReplaceHalf();
  ASSERT_OK(Rename("d", "e"));
  EXPECT_EQ(ContentAfterKill("kept"), "old");
  EXPECT_EQ(ContentAfterKill("e/f"), "settled");
}

TEST_F(Replacements, RenamingADirectoryReportsFailedFilesBelowIt) {
  for (const size_t entries : {size_t{10}, kManyEntries}) {
    AddEntries("d", entries);
    Lose("elsewhere");
    ASSERT_OK(Rename("d", "e"));
    EXPECT_EQ(Rename("elsewhere", "moved").error().code, ErrorCode::kIo) << "the error is still pending";
    Lose("e/f");
    EXPECT_EQ(Rename("e", "d").error().code, ErrorCode::kIo) << entries << " entries";
    ASSERT_OK(Rename("e", "d"));
    ASSERT_OK(store_->names().Unlink(store_.Resolve("d").value(), "f"));
    ASSERT_OK(store_->names().Unlink(kRootInode, "elsewhere"));
  }
}

TEST_F(Replacements, RenamingASymbolicLinkReportsTheFailedFilesItLeadsTo) {
  MakeDirectory("other");
  MakeLink("next", "hop");
  for (const char* target : {"d/f", "d", "./other/../d//f", "/mnt/store/d/f", "/d", "next"}) {
    MakeLink("hop", "d/./f");
    MakeLink("link", target);
    Lose("d/f");
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_EQ(Rename("link", "latest").error().code, ErrorCode::kIo) << target;
    }
    EXPECT_FALSE(store_->Sync(store_.OpenPath("d/f").value()).has_value()) << "the error is still its writer's";
    ASSERT_OK(Rename("link", "latest"));
    for (const char* name : {"hop", "latest"}) ASSERT_OK(store_->names().Unlink(kRootInode, name));
    ASSERT_OK(store_->names().Unlink(store_.Resolve("d").value(), "f"));
  }
  MakeLink("loop", "loop");
  Lose("d/f");
  for (const char* target : {"other", "/mnt/store/other", "d/g", "loop", "loop/d/f", "/", "/.", "."}) {
    MakeLink("link", target);
    ASSERT_OK(Rename("link", "latest"));
  }
}

TEST_F(Replacements, AStoreThatEndsCommitsNoReplacementThatIsOpen) {
  ASSERT_OK(store_.WriteFile("other", "changed"));
  ReplaceHalf();  // and leaves it open
  ASSERT_OK(store_.Remount());
  EXPECT_EQ(store_.ReadPath("kept").value(), "old");
  EXPECT_EQ(store_.ReadPath("other").value(), "changed");
}

TEST_F(Replacements, AReaderDoesNotHoldBackAReplacement) {
  const InodePtr reader = store_.OpenPath("kept").value();
  ASSERT_OK(store_.WriteFile("kept", "new"));
  ASSERT_OK(store_->SyncAll());
  EXPECT_EQ(ContentAfterKill("kept"), "new");
}

TEST_F(Replacements, TheLastOfSeveralWritersEndsAReplacement) {
  const InodePtr first = ReplaceHalf();
  ASSERT_OK(store_.WriteFile("kept", "new"));
  ASSERT_OK(store_->SyncAll());
  EXPECT_EQ(ContentAfterKill("kept"), "old") << "the first writer has it open";
  store_->CloseFile(first, 0, /*writes=*/true);
  ASSERT_OK(store_->SyncAll());
  EXPECT_EQ(ContentAfterKill("kept"), "new");
}

TEST_F(Replacements, ATruncationByAReaderIsNoReplacement) {
  ASSERT_OK(store_->OpenFile(store_.Resolve("kept").value(), /*truncate=*/true, /*writes=*/false));
  ASSERT_OK(store_->SyncAll());
  EXPECT_EQ(ContentAfterKill("kept"), "");
}

TEST_F(Replacements, AnUnreportedErrorOutlivesTheInodeCache) {
  Lose("temporary");
  for (int i = 0; i < 200; ++i) ASSERT_OK(store_.WriteFile("filler" + std::to_string(i), "x"));
  ASSERT_OK(store_->SyncAll());
  EXPECT_EQ(Rename("temporary", "kept").error().code, ErrorCode::kIo);
  EXPECT_EQ(store_.ReadPath("kept").value(), "old");
  ASSERT_OK(store_->Close());  // the error was reported
}

// The error of a failed write is pending, and the file is then replaced by its writer.
TEST_F(Replacements, TheReportOfAnErrorCommitsNoReplacement) {
  for (const size_t entries : {size_t{10}, kManyEntries}) {
    AddEntries("d", entries);
    const InodePtr half = ReplaceHalfAfterAFailure();
    EXPECT_EQ(Rename("d", "e").error().code, ErrorCode::kIo);
    EXPECT_EQ(ContentAfterKill("kept"), "old");
    ASSERT_OK(Rename("d", "e"));
    EXPECT_EQ(ContentAfterKill("kept"), "old");
    ASSERT_OK(Rename("e", "d"));
    store_->CloseFile(half, 0, /*writes=*/true);
    ASSERT_OK(store_.WriteFile("kept", "old"));
  }
}

TEST_F(Replacements, TheReportOfAnErrorThroughALinkCommitsNoReplacement) {
  MakeLink("link", "kept");
  const InodePtr half = ReplaceHalfAfterAFailure();
  EXPECT_EQ(Rename("link", "latest").error().code, ErrorCode::kIo);
  EXPECT_EQ(ContentAfterKill("kept"), "old");
}

TEST_F(Replacements, AStoreThatEndsReportsTheErrorOfAFileThatIsBeingReplaced) {
  ReplaceHalfAfterAFailure();  // and leaves it open
  const auto closed = store_->Close();
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().what, "writes of inode 3 have failed");
  EXPECT_EQ(ContentAfterKill("kept"), "old");
}

TEST_F(Replacements, AnEmptyFileIsReplacedToo) {
  ASSERT_OK(store_.WriteFile("kept", ""));
  const InodePtr half = ReplaceHalf();
  ASSERT_OK(store_->SyncAll());
  EXPECT_EQ(ContentAfterKill("kept"), "old");
}

// Each replacement begins before the commit of the last one was due.
TEST_F(Replacements, AFileThatIsReplacedAgainAndAgainIsCommittedInTime) {
  TestStoreOptions options = Options();
  options.store.commit_interval = std::chrono::milliseconds(0);
  TestStore store(options);
  ASSERT_OK(store.WriteFile("kept", "old"));
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store.WriteFile("kept", "complete"));
  const InodePtr half = store.OpenPath("kept", /*truncate=*/true).value();
  ASSERT_OK(store.WriteAt(half, 0, "half"));
  ASSERT_OK(store->SyncAll());
  TestStore after(store.journal().ImageAt(store.journal().size(), {.kind = CrashOptions::Kind::kProcessKill}), {});
  EXPECT_EQ(after.ReadPath("kept").value_or("unreadable"), "complete");
}

TEST_F(Replacements, AStoreThatEndsReportsErrorsThatNobodyHasReceived) {
  Lose("temporary");
  const auto closed = store_->Close();
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().code, ErrorCode::kIo);
}

TEST_F(Replacements, TheErrorOfADeletedFileIsForgotten) {
  Lose("temporary");
  ASSERT_OK(store_->names().Unlink(kRootInode, "temporary"));
  ASSERT_OK(store_->Close());
}

TEST_F(Replacements, UnreadableChecksumsFailTheirFileAlone) {
  ASSERT_OK(store_.WriteFile("damaged", Pattern(1, 10 * kBlockSize)));
  ASSERT_OK(store_->SyncAll());
  KvBatch batch;
  batch.Put(keys::Checksums(store_.Resolve("damaged").value(), 0), "no checksums");
  ASSERT_OK(store_.kv().Write(batch));
  ASSERT_OK(store_.Remount());
  const InodePtr damaged = store_.OpenPath("damaged").value();
  ASSERT_OK(store_.WriteFile("other", "new"));
  for (int attempt = 0; attempt < 2; ++attempt) {
    ASSERT_OK(store_.WriteAt(damaged, 0, Pattern(2, kBlockSize)));
    EXPECT_EQ(store_->Sync(damaged).error().code, ErrorCode::kIo);
    EXPECT_FALSE(store_->read_only());
  }
  ASSERT_OK(store_->SyncAll());
  EXPECT_EQ(ContentAfterKill("other"), "new");
  EXPECT_EQ(store_.SizeOf(damaged), 10 * kBlockSize);
  ASSERT_OK(store_.WriteFile("damaged", Pattern(3, 2 * kBlockSize)));  // a replacement needs no old checksums
  ASSERT_OK(store_->SyncAll());
  EXPECT_EQ(ContentAfterKill("damaged"), Pattern(3, 2 * kBlockSize));
}

}  // namespace
}  // namespace weightfs
