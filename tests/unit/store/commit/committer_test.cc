// SPDX-License-Identifier: Apache-2.0
#include "store/commit/committer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "meta/keys.h"
#include "tests/support/file_rig.h"
#include "tests/support/result_asserts.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

class CommitterTest : public ::testing::Test {
 protected:
  // Long delays, so that a commit happens only on request.
  CommitterTest()
      : committer_(std::make_unique<Committer>(
            rig_.kv(), rig_.devices(), rig_.space(), rig_.write_back(),
            Committer::Options{.interval = std::chrono::hours(1),
                               .close_delay = std::chrono::hours(1),
                               .replace_delay = std::chrono::hours(1),
                               .retire = [this](const std::vector<DeviceRun>& runs) { rig_.space().Retire(runs); },
                               .freed = [this](size_t extents) { freed_ += extents; }})) {
    EXPECT_TRUE(committer_->Start());
  }

  InodePtr NewChangedFile(uint64_t ino, const std::string& data) {
    InodePtr inode = rig_.NewFile(ino);
    Change(inode, data);
    return inode;
  }
  void Change(const InodePtr& inode, const std::string& data) {
    rig_.Write(inode, 0, data);
    MutexLock lock(inode->mutex);
    committer_->NoteChanged(inode);
  }
  Result<void> Commit(const InodePtr& inode, CommitLevel level = CommitLevel::kDurable, bool kept = false) {
    std::promise<Result<void>> done;
    committer_->Commit(
        inode, level, [&](Result<void> result) { done.set_value(std::move(result)); }, {.kept = kept});
    return done.get_future().get();
  }
  bool IsInCatalog(uint64_t ino) { return rig_.kv().Get(keys::Inode(InodeId{ino})).value().has_value(); }
  bool IsUncommitted(const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    return inode->file->Uncommitted();
  }

  // Waits until the cycles before have ended.
  void WaitForCycle() {
    std::promise<void> later;
    committer_->FlushDevices([&](const Result<void>&) { later.set_value(); });
    later.get_future().wait();
  }

  FileRig rig_;
  std::atomic<size_t> freed_ = 0;  // extents
  std::unique_ptr<Committer> committer_;
};

TEST_F(CommitterTest, ACommitWritesOneFileAndLeavesOthers) {
  const InodePtr file = NewChangedFile(10, Pattern(1, 2 * kBlockSize)), other = NewChangedFile(11, Pattern(2, 100));
  EXPECT_TRUE(Commit(file));
  EXPECT_TRUE(IsInCatalog(10));
  EXPECT_FALSE(IsInCatalog(11));
  EXPECT_FALSE(IsUncommitted(file));
  EXPECT_THAT(committer_->Uncommitted(), ::testing::Contains(other));
  MutexLock lock(file->mutex);
  EXPECT_EQ(file->committed.size, 2 * kBlockSize);
  EXPECT_EQ(file->committed.version, 1U);
}

TEST_F(CommitterTest, ACycleReportsOfHowManyExtentsItHasFreedMemory) {
  const InodePtr file = NewChangedFile(10, Pattern(1, 2 * kBlockSize));
  EXPECT_TRUE(Commit(file));
  WaitForCycle();
  EXPECT_EQ(freed_, 1U);
}

TEST_F(CommitterTest, ACommitOfEverythingIsOneSync) {
  rig_.kv().FailSync(2);
  const InodePtr file = NewChangedFile(10, Pattern(1, kBlockSize)), other = NewChangedFile(11, Pattern(2, kBlockSize));
  std::promise<Result<void>> done;
  committer_->CommitAll(CommitLevel::kDurable, [&](Result<void> result) { done.set_value(std::move(result)); });
  EXPECT_TRUE(done.get_future().get());
  EXPECT_TRUE(IsInCatalog(10) && IsInCatalog(11));
  EXPECT_FALSE(IsUncommitted(file) || IsUncommitted(other));
  Change(file, Pattern(2, kBlockSize));
  EXPECT_EQ(Commit(file).error().code, ErrorCode::kIo) << "the second sync";
}

TEST_F(CommitterTest, AnOrderedCommitLeavesTheSyncToTheLog) {
  std::atomic<size_t> retired = 0;
  InodePtr file;
  const auto retire = [&](const std::vector<DeviceRun>& runs) NO_THREAD_SAFETY_ANALYSIS {
    retired += runs.size();
    EXPECT_TRUE(runs.empty() || file->file->commit().committing()) << "whoever finds it clean may look for the space";
  };
  committer_ = std::make_unique<Committer>(
      rig_.kv(), rig_.devices(), rig_.space(), rig_.write_back(),
      Committer::Options{.interval = std::chrono::hours(1),
                         .close_delay = std::chrono::hours(1),
                         .replace_delay = std::chrono::hours(1),
                         .retire = retire});
  ASSERT_TRUE(committer_->Start());
  file = NewChangedFile(10, Pattern(1, kBlockSize));
  ASSERT_TRUE(Commit(file));
  rig_.kv().FailSync(1);
  Change(file, Pattern(2, kBlockSize));
  EXPECT_TRUE(Commit(file, CommitLevel::kOrdered));
  WaitForCycle();
  EXPECT_FALSE(committer_->failed());
  EXPECT_EQ(retired, 1U) << "the log knows when the old block may be used again";
  EXPECT_EQ(Commit(file).error().code, ErrorCode::kIo) << "the first sync";
  committer_.reset();
}

TEST_F(CommitterTest, ACallerCommitsAFileItself) {
  const InodePtr file = NewChangedFile(10, Pattern(1, kBlockSize));
  EXPECT_TRUE(committer_->CommitHere(file, {}));
  EXPECT_TRUE(IsInCatalog(10));
  EXPECT_FALSE(IsUncommitted(file));
  rig_.device().Fail(FaultDevice::Target::kWrite, {});
  Change(file, Pattern(2, kBlockSize));
  EXPECT_EQ(committer_->CommitHere(file, {.kept = true}).error().code, ErrorCode::kIo);
  EXPECT_EQ(committer_->CommitHere(file, {}).error().code, ErrorCode::kIo) << "the error was kept";
  EXPECT_TRUE(committer_->CommitHere(file, {}));
  MutexLock lock(file->mutex);
  EXPECT_FALSE(file->file->loaded()) << "back at its last commit";
}

TEST_F(CommitterTest, WritesOfTheNextCycleBeginDuringThisOne) {
  const InodePtr first = NewChangedFile(10, Pattern(1, kBlockSize));
  const InodePtr second = NewChangedFile(11, Pattern(2, kBlockSize));
  const InodePtr large = NewChangedFile(12, Pattern(3, kMiB));
  committer_->StartEarly(second);
  EXPECT_EQ(rig_.device().counts().writes, 0U) << "it would wait for no other";
  rig_.device().Hold();
  auto here = std::async(std::launch::async, [&] { return committer_->CommitHere(first, {}); });
  rig_.device().WaitForHeld(1);
  committer_->StartEarly(large);
  EXPECT_EQ(rig_.device().counts().writes, 1U) << "its checksums take long";
  committer_->StartEarly(second);
  rig_.device().WaitForHeld(2);
  rig_.device().Release();
  EXPECT_TRUE(here.get());
  EXPECT_TRUE(Commit(second));
  EXPECT_EQ(rig_.device().counts().writes, 2U);
}

TEST_F(CommitterTest, AFileIsInOneCycleAtATime) {
  for (const bool fails : {false, true}) {
    const InodePtr file = NewChangedFile(10, Pattern(1, kBlockSize));
    rig_.device().Hold();
    auto here = std::async(std::launch::async, [&] { return committer_->CommitHere(file, {}); });
    rig_.device().WaitForHeld(1);
    EXPECT_THAT(committer_->Uncommitted(), ::testing::Contains(file));
    auto again = std::async(std::launch::async, [&] { return committer_->CommitHere(file, {}); });
    auto queued = std::async(std::launch::async, [&] { return Commit(file, CommitLevel::kOrdered); });
    if (fails) rig_.kv().FailWrite(1);
    rig_.device().Release();
    for (auto* result : {&here, &again, &queued}) EXPECT_EQ(result->get().has_value(), !fails);
    EXPECT_EQ(committer_->failed(), fails);
  }
}

// A cycle that has nothing of a file to commit leaves its failed writes to the cycle that has.
TEST_F(CommitterTest, OnlyTheCycleThatHasAFileRevertsIt) {
  const InodePtr file = NewChangedFile(10, Pattern(1, kBlockSize)), other = NewChangedFile(11, Pattern(2, kBlockSize));
  ASSERT_TRUE(Commit(file));
  for (uint64_t round = 0; round < 50; ++round) {
    Change(other, Pattern(round, kBlockSize));
    rig_.device().Hold();
    std::promise<void> begun, go;
    committer_->FlushDevices([&](const Result<void>&) {
      begun.set_value();
      go.get_future().wait();
    });
    begun.get_future().wait();
    std::promise<void> unchanged;
    std::promise<Result<void>> changed;
    const auto report = [&](Result<void> result) { changed.set_value(std::move(result)); };
    committer_->Commit(other, CommitLevel::kOrdered, report);
    committer_->Commit(
        file, CommitLevel::kOrdered, [&](const Result<void>&) { unchanged.set_value(); }, {.kept = true});
    go.set_value();
    const auto is_committing = [&] {
      MutexLock lock(other->mutex);
      return other->file->commit().committing();
    };
    while (!is_committing()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the cycle finds nothing of `file`, in most rounds
    Change(file, Pattern(round, kBlockSize));
    rig_.device().Fail(FaultDevice::Target::kWrite, {});  // the next one
    auto here = std::async(std::launch::async, [&] { return committer_->CommitHere(file, {}); });
    rig_.device().WaitForHeld(2);
    rig_.device().CompleteOne();
    rig_.device().Release();
    EXPECT_FALSE(here.get());
    unchanged.get_future().wait();
    EXPECT_TRUE(changed.get_future().get());
    static_cast<void>(Commit(file).has_value());  // an error that was kept
    MutexLock lock(file->mutex);
    file->file->Load(ExtentMap());
  }
}

TEST_F(CommitterTest, ClosedFilesAreWrittenAtOnceWhileOthersGetNames) {
  const auto dirty = [](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    return inode->file->dirty().dirty().value;
  };
  const InodePtr first = NewChangedFile(10, Pattern(1, kBlockSize));
  const InodePtr second = NewChangedFile(11, Pattern(2, kBlockSize));
  committer_->CommitSoon(first);
  EXPECT_EQ(dirty(first), 1U);
  ASSERT_TRUE(committer_->CommitHere(first, {}));
  committer_->CommitSoon(second);
  EXPECT_EQ(dirty(second), 0U);
  EXPECT_FALSE(IsInCatalog(11));
  for (uint64_t ino = 12; ino < 32; ++ino) {
    const InodePtr other = NewChangedFile(ino, Pattern(1, kBlockSize));
    committer_->CommitSoon(other);
    EXPECT_EQ(dirty(other), ino < 19 ? 0U : 1U) << "names are not expected any more";
  }
}

TEST_F(CommitterTest, AFileThatIsBeingReplacedIsCommittedOnlyByItself) {
  const InodePtr file = NewChangedFile(10, Pattern(1, kBlockSize));
  {
    MutexLock lock(file->mutex);
    static_cast<void>(file->file->BeginReplacement());
  }
  committer_->CommitSoon(file);  // an earlier close
  std::promise<void> all;
  committer_->CommitAll(CommitLevel::kOrdered, [&](const Result<void>&) { all.set_value(); });
  all.get_future().wait();
  EXPECT_FALSE(IsInCatalog(10));
  std::promise<void> settled;
  committer_->Commit(
      file, CommitLevel::kOrdered, [&](const Result<void>&) { settled.set_value(); }, {.settled = true});
  settled.get_future().wait();
  EXPECT_FALSE(IsInCatalog(10));
  EXPECT_TRUE(Commit(file, CommitLevel::kOrdered));
  EXPECT_TRUE(IsInCatalog(10));
}

TEST_F(CommitterTest, RequestsThatLeaveAFileOutDoNotAccumulate) {
  const InodePtr file = NewChangedFile(10, Pattern(1, kBlockSize));
  {
    MutexLock lock(file->mutex);
    static_cast<void>(file->file->BeginReplacement());
  }
  const auto references = [&] {
    std::promise<void> settled;
    committer_->Commit(
        file, CommitLevel::kOrdered, [&](const Result<void>&) { settled.set_value(); }, {.settled = true});
    settled.get_future().wait();
    WaitForCycle();
    return file.use_count();
  };
  const long first = references();
  EXPECT_EQ(references(), first);
}

TEST_F(CommitterTest, AFailedWriteRevertsTheFileAndIsReportedOnce) {
  const InodePtr file = NewChangedFile(10, Pattern(1, kBlockSize));
  ASSERT_TRUE(Commit(file));
  std::vector<InodeId> reverted;
  committer_->OnReverted([&](InodeId ino) { reverted.push_back(ino); });
  rig_.device().Fail(FaultDevice::Target::kWrite, {});
  Change(file, Pattern(2, kBlockSize));
  EXPECT_EQ(Commit(file, CommitLevel::kDurable, /*kept=*/true).error().code, ErrorCode::kIo);
  EXPECT_TRUE(IsUncommitted(file)) << "the error is kept for others";
  EXPECT_EQ(Commit(file).error().code, ErrorCode::kIo);
  EXPECT_TRUE(Commit(file));
  EXPECT_FALSE(IsUncommitted(file));
  committer_->OnReverted(nullptr);
  EXPECT_EQ(reverted, std::vector<InodeId>{InodeId{10}});
  MutexLock lock(file->mutex);
  EXPECT_FALSE(file->file->loaded());
  EXPECT_EQ(file->attributes.size, kBlockSize);
}

// The blocks of a commit that the catalog has refused, and of those that were to follow it.
TEST_F(CommitterTest, ARefusedCommitFreesItsBlocks) {
  const InodePtr file = NewChangedFile(10, Pattern(1, 8 * kBlockSize));
  ASSERT_TRUE(Commit(file));
  WaitForCycle();
  const BlockCount free = TestFileServices::kBlocks - BlockCount{8};
  ASSERT_TRUE(rig_.space().WouldFit(free, {}, /*privileged=*/true));
  Change(file, Pattern(2, 4 * kBlockSize));
  rig_.WriteBackAll(file);
  Change(file, Pattern(3, 16 * kBlockSize));  // some of them again
  rig_.kv().FailWrite(1, ErrorCode::kNoSpace);
  EXPECT_EQ(Commit(file).error().code, ErrorCode::kNoSpace);
  WaitForCycle();
  EXPECT_TRUE(rig_.space().WouldFit(free, {}, /*privileged=*/true));
  EXPECT_FALSE(rig_.space().WouldFit(free + BlockCount{1}, {}, /*privileged=*/true)) << "the file has its old blocks";
  ASSERT_OK(LoadFile(rig_.kv(), file));
  Change(file, Pattern(4, 16 * kBlockSize));
  EXPECT_TRUE(Commit(file));
  WaitForCycle();
  EXPECT_TRUE(rig_.space().WouldFit(TestFileServices::kBlocks - BlockCount{16}, {}, /*privileged=*/true));
}

TEST_F(CommitterTest, AFailedSyncEndsAllCommits) {
  const InodePtr file = NewChangedFile(10, Pattern(1, kBlockSize));
  rig_.kv().FailSync(1);
  EXPECT_EQ(Commit(file).error().code, ErrorCode::kIo);
  EXPECT_TRUE(committer_->failed());
  EXPECT_EQ(Commit(file).error().code, ErrorCode::kIo);
}

TEST_F(CommitterTest, SpaceOfOverwrittenBlocksIsFreeAfterTheCommit) {
  const InodePtr file = NewChangedFile(10, Pattern(1, 256 * kBlockSize));
  ASSERT_TRUE(Commit(file));
  SpaceReservation all;
  const BlockCount rest = TestFileServices::kBlocks - BlockCount{768};
  ASSERT_TRUE(rig_.space().Reserve(&all, rest, /*privileged=*/true));
  Change(file, Pattern(2, 256 * kBlockSize));
  SpaceReservation more;
  EXPECT_FALSE(rig_.space().Reserve(&more, BlockCount{300}, /*privileged=*/true)) << "the old blocks may be needed";
  ASSERT_TRUE(Commit(file));
  EXPECT_TRUE(rig_.space().Reserve(&more, BlockCount{300}, /*privileged=*/true));
}

TEST_F(CommitterTest, AfterStopRequestsAreRefused) {
  const InodePtr file = NewChangedFile(10, Pattern(1, kBlockSize));
  EXPECT_TRUE(committer_->Stop());
  EXPECT_TRUE(IsInCatalog(10)) << "the last cycle commits everything";
  EXPECT_EQ(Commit(file).error().code, ErrorCode::kShutdown);
}

}  // namespace
}  // namespace weightfs
