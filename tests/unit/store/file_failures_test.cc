// SPDX-License-Identifier: Apache-2.0
// Devices and catalogs that fail or return wrong data under the data path: the errors that callers receive, and the
// data that survives.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/result_asserts.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

constexpr uint64_t kBlock = kBlockSize;

TEST(FileFailures, AFlippedByteIsAnErrorNeverData) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string data = Pattern(10, kMiB);
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->Sync(file));
  const auto extents = store->files().Extents(file, FileBlock{0}, 10).value();
  store.device().Corrupt(ToBytes(extents[0].start) + ByteCount{5 * kBlock + 17});
  ASSERT_OK(store.Remount());
  const InodePtr again = store.OpenPath("a").value();
  EXPECT_EQ(store.ReadAt(again, 5 * kBlock, 10).error().code, ErrorCode::kCorrupt);
  EXPECT_FALSE(store.ReadAt(again, 0, kMiB).has_value());
  EXPECT_TRUE(Must(store.ReadAt(again, 600 * kKiB, 4096)) == data.substr(600 * kKiB, 4096));
  EXPECT_EQ(store.WriteAt(again, 5 * kBlock + 1, "x").error().code, ErrorCode::kCorrupt)
      << "a partial overwrite must not bless the block";
  EXPECT_GE(store->statistics().checksum_errors, 1U);
}

TEST(FileFailures, AFailedWriteIsReportedOnceAndTheLastCommitStays) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string old = Pattern(11, 100000);
  ASSERT_OK(store.WriteAt(file, 0, old));
  ASSERT_OK(store->Sync(file));
  store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
  ASSERT_OK(store.WriteAt(file, 0, Pattern(12, 100000)));
  EXPECT_EQ(store->Sync(file).error().code, ErrorCode::kIo);
  EXPECT_TRUE(Must(store.ReadAll(file)) == old);
  EXPECT_FALSE(store->read_only());
  ASSERT_OK(store.WriteAt(file, 10, "new"));
  ASSERT_OK(store->Sync(file));
  std::string expected = old;
  expected.replace(10, 3, "new");
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == expected);
}

// Flushes one copy of a descriptor.
Result<void> FlushOf(TestStore& store, const InodePtr& file, std::atomic<uint64_t>* reported) {
  Result<void> result;
  store->Flush(file, reported, [&](Result<void> done) { result = std::move(done); });  // Does not block.
  return result;
}

// Closes another open of the file.
Result<void> CloseOf(TestStore& store, const InodePtr& file) {
  std::atomic<uint64_t> reported{0};
  const InodePtr opened = store->OpenFile(file->id, false).value();
  auto result = FlushOf(store, opened, &reported);
  store->CloseFile(opened, reported);
  return result;
}

TEST(FileFailures, AFailedWriteIsRolledBackWhicheverCallReportedItFirst) {
  for (const bool by_close : {false, true}) {
    TestStore store;
    const InodePtr file = store.Create("a").value();
    const std::string old = Pattern(11, 8 * kMiB);
    ASSERT_OK(store.WriteAt(file, 0, old));
    ASSERT_OK(store->Sync(file));
    store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
    store.device().Hold();
    ASSERT_OK(store.WriteAt(file, 0, Pattern(12, 4 * kMiB)));  // Whole stripes are written back immediately.
    store.device().WaitForHeld(2);
    store.device().CompleteOne();
    for (int call = 0; call < 2; ++call) {
      const auto reported = by_close ? CloseOf(store, file) : store.WriteAt(file, 6 * kMiB, "new");
      ASSERT_FALSE(reported.has_value()) << "nothing is taken before the file is whole again";
      EXPECT_EQ(reported.error().code, ErrorCode::kIo);
    }
    store.device().Release();
    static_cast<void>(store->Sync(file).has_value());  // returns an error if it joins the cycle that reverts the file
    EXPECT_TRUE(Must(store.ReadAll(file)) == old);
    ASSERT_OK(store.WriteAt(file, 6 * kMiB, "new"));
    ASSERT_OK(CloseOf(store, file));
    ASSERT_OK(store->Sync(file));
    ASSERT_OK(store.Remount());
    EXPECT_TRUE(Must(store.ReadPath("a")) == std::string(old).replace(6 * kMiB, 3, "new"));
  }
}

TEST(FileFailures, AnUnreportedWriteErrorIsReturnedByTheNextCall) {
  enum Call { kWrite, kClose, kSync, kRename, kLink };
  for (const Call call : {kWrite, kClose, kSync, kRename, kLink}) {
    TestStore store;
    const InodePtr file = store.Create("a").value();
    std::promise<void> back;
    store->OnReverted([&](InodeId) { back.set_value(); });
    store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1, .code = ErrorCode::kNoSpace});
    ASSERT_OK(store.WriteAt(file, 0, Pattern(12, 4 * kMiB)));
    back.get_future().wait();  // No commit was requested.
    const auto ask = [&]() -> Result<void> {
      switch (call) {
        case kWrite: return store.WriteAt(file, 0, "x");
        case kClose: return CloseOf(store, file);
        case kSync: return store->Sync(file);
        case kRename: return store->names().Rename(kRootInode, "a", kRootInode, "b", RenameMode::kReplace);
        case kLink: RETURN_IF_ERROR(store->names().Link(file->id, kRootInode, "b")); return {};
      }
      return {};
    };
    const auto reported = ask();
    ASSERT_FALSE(reported.has_value()) << call;
    EXPECT_EQ(reported.error().code, ErrorCode::kIo) << "a device without room is not a full pool";
    ASSERT_OK(ask());
    store->OnReverted(nullptr);
  }
}

// A file with a failed device write. Until PutBack, the revert is held, so the file is in the failed state.
struct FailedFile {
  FailedFile() {
    store->OnReverted([this](InodeId) { back.set_value(); });
    store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
    store.device().Hold();
    EXPECT_TRUE(store.WriteAt(file, 0, Pattern(12, 4 * kMiB)).has_value());  // Whole stripes are written back
                                                                             // immediately.
    store.device().WaitForHeld(2);
    store.device().CompleteOne();
  }
  ~FailedFile() { store->OnReverted(nullptr); }
  void PutBack() {
    store.device().Release();
    back.get_future().wait();
  }

  TestStore store;
  const InodePtr file = store.Create("a").value();
  std::promise<void> back;
};

// The kernel sends a long write(2) in pieces, and returns the bytes accepted before a failed piece instead of its
// error.
TEST(FileFailures, ARefusedWriteLeavesTheErrorToFsyncAndClose) {
  for (const bool write_failed : {false, true}) {
    for (const bool by_close : {false, true}) {
      FailedFile failed;
      TestStore& store = failed.store;
      const auto piece = [&] { return store.WriteAt(failed.file, 4 * kMiB, "piece"); };
      bool refused = write_failed && !piece().has_value();
      failed.PutBack();
      if (!write_failed) refused = !piece().has_value();
      EXPECT_TRUE(refused);
      ASSERT_OK(piece());
      const auto end = [&] { return by_close ? CloseOf(store, failed.file) : store->Sync(failed.file); };
      EXPECT_FALSE(end().has_value()) << "what was taken before is lost";
      ASSERT_OK(end());
    }
  }
}

// A program that starts another one closes copies of its descriptors there, and ignores the results of these closes.
TEST(FileFailures, ClosingACopyOfADescriptorLeavesTheErrorToTheOthers) {
  for (const bool write_failed : {false, true}) {
    FailedFile failed;
    std::atomic<uint64_t> reported{0};
    const auto close_copy = [&] { return FlushOf(failed.store, failed.file, &reported); };
    bool copy = write_failed && !close_copy();
    failed.PutBack();
    if (!write_failed) copy = !close_copy();
    EXPECT_TRUE(copy);
    EXPECT_FALSE(close_copy().has_value());
    EXPECT_FALSE(failed.store->Sync(failed.file).has_value());
    ASSERT_OK(close_copy());
  }
}

// Like the syncs of the pieces of a long write with O_SYNC.
TEST(FileFailures, ASyncThatKeepsTheErrorLeavesItToTheNextSync) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
  ASSERT_OK(store.WriteAt(file, 0, Pattern(12, 5000)));
  std::promise<Result<void>> done;
  store->Sync(
      file, [&](Result<void> result) { done.set_value(std::move(result)); }, /*kept=*/true);
  EXPECT_FALSE(done.get_future().get().has_value());
  EXPECT_FALSE(store->Sync(file).has_value());
  ASSERT_OK(store->Sync(file));
}

TEST(FileFailures, ACommittingCloseLeavesTheErrorToOtherCopies) {
  TestStore store({.store = {.sync_on_close = true, .memory = ByteCount{48 * kMiB}}});
  const InodePtr file = store.Create("a").value();
  store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
  ASSERT_OK(store.WriteAt(file, 0, Pattern(12, 5000)));
  std::atomic<uint64_t> reported{0};
  for (int copy = 0; copy < 2; ++copy) {
    std::promise<Result<void>> done;
    store->Flush(file, &reported, [&](Result<void> result) { done.set_value(std::move(result)); });
    EXPECT_FALSE(done.get_future().get().has_value());
  }
  store->CloseFile(file, reported);
  const InodePtr again = store.OpenPath("a").value();
  ASSERT_OK(store.WriteAt(again, 0, "new"));
  ASSERT_OK(store->Sync(again));
}

TEST(FileFailures, ARevertedFileIsReportedToTheListener) {
  TestStore store;
  const InodePtr file = store.Create("a").value(), other = store.Create("b").value();
  std::vector<InodeId> reported;
  store->OnReverted([&](InodeId ino) { reported.push_back(ino); });
  ASSERT_OK(store.WriteAt(other, 0, Pattern(1, 5000)));
  ASSERT_OK(store->Sync(other));
  EXPECT_TRUE(reported.empty());
  store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
  ASSERT_OK(store.WriteAt(file, 0, Pattern(2, 5000)));
  EXPECT_EQ(store->Sync(file).error().code, ErrorCode::kIo);
  EXPECT_EQ(reported, std::vector{file->id});
  store->OnReverted(nullptr);
}

TEST(FileFailures, LoadingAFileThatAFailedWriteDropsGivesItsLastCommit) {
  TestStore store;
  ASSERT_OK(store.WriteFile("a", Pattern(1, kMiB)));
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store.Remount());
  const InodePtr file = store.OpenPath("a").value();
  const std::string data = Pattern(2, kMiB);
  store.kv().AfterGet([&] {  // writeback of the old extent
    ASSERT_OK(store.WriteAt(file, 0, data));
    ASSERT_OK(store->Sync(file));
    store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
    ASSERT_OK(store.WriteAt(file, 0, Pattern(3, kMiB)));
    ASSERT_FALSE(store->Sync(file).has_value());
  });
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
}

TEST(FileFailures, AWriteErrorDuringACopyIsReturned) {
  TestStore store;
  const InodePtr source = store.Create("source").value(), target = store.Create("target").value();
  const std::string data = Pattern(1, 24 * kMiB);
  ASSERT_OK(store.WriteAt(source, 0, data));
  ASSERT_OK(store->Sync(source));
  store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});  // of the first stripe, while the copy continues
  uint64_t done = 0;
  bool reported = false;
  while (done < data.size() && !reported) {
    const auto copied = store->files().CopyRange(source, done, target, done, data.size() - done);
    reported = !copied.has_value();
    if (copied) done += *copied;
  }
  reported = !store->Sync(target).has_value() || reported;
  EXPECT_TRUE(reported || Must(store.ReadAll(target)) == data) << "all was acknowledged, the commit too";
}

TEST(FileFailures, AFileDeletedWhileAWriteOfItFailsGivesAllItsSpaceBack) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const auto fill = [&] {
    const InodePtr filler = store.Create("filler").value();
    uint64_t size = 0;
    while (store.WriteAt(filler, size, Pattern(size, kMiB))) size += kMiB;
    store->CloseFile(filler);
    EXPECT_TRUE(store->names().Unlink(kRootInode, "filler").has_value());
    return size;
  };
  const uint64_t room = fill();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(1, 20 * kMiB + kBlock)));
  ASSERT_OK(store->Sync(file));
  store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
  store.device().Hold();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(2, 20 * kMiB + kBlock)));
  std::promise<void> synced;
  store->Sync(file, [&](Result<void>) { synced.set_value(); });
  store.device().WaitForHeld(11);  // including the last block: the commit has sealed everything
  store->CloseFile(file);
  ASSERT_OK(store->names().Unlink(kRootInode, "a"));
  store.device().Release();
  synced.get_future().wait();
  EXPECT_EQ(fill(), room);
}

TEST(FileFailures, AFailedFlushMakesTheStoreReadOnly) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, "data"));
  store.device().Fail(FaultDevice::Target::kFlush, {.nth = 1});
  EXPECT_EQ(store->Sync(file).error().code, ErrorCode::kIo);
  EXPECT_TRUE(store->read_only());
  EXPECT_EQ(store.WriteAt(file, 0, "more").error().code, ErrorCode::kReadOnly);
  EXPECT_FALSE(store->Sync(file).has_value()) << "a failed fsync is never tried again as if nothing were lost";
}

TEST(FileFailures, NoNameChangesAfterAFailedFlush) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, "data"));
  store.device().Fail(FaultDevice::Target::kFlush, {.nth = 1});
  ASSERT_FALSE(store->Sync(file).has_value());
  Namespace& names = store->names();
  EXPECT_EQ(names.Create(kRootInode, "d", {.mode = S_IFDIR | 0755}).error().code, ErrorCode::kReadOnly);
  EXPECT_EQ(names.Unlink(kRootInode, "a").error().code, ErrorCode::kReadOnly);
  EXPECT_EQ(names.Rename(kRootInode, "a", kRootInode, "b", RenameMode::kReplace).error().code, ErrorCode::kReadOnly);
}

// Otherwise the link or the directory would publish data that a crash loses.
TEST(FileFailures, ARenameWhoseCommitFailsDoesNotHappen) {
  for (const uint32_t type : {uint32_t{S_IFLNK}, uint32_t{S_IFDIR}}) {
    TestStore store({.store = {.commit_interval = std::chrono::hours(1), .memory = ByteCount{48 * kMiB}}});
    ASSERT_OK(store->names().Create(kRootInode, "from", {.mode = type | 0755, .symlink = "anywhere"}));
    const std::string path = type == S_IFDIR ? "from/a" : "a";
    ASSERT_OK(store.WriteAt(store.Create(path).value(), 0, "data"));
    store.kv().FailWrite(1);
    EXPECT_FALSE(store->names().Rename(kRootInode, "from", kRootInode, "to", RenameMode::kReplace).has_value());
    EXPECT_FALSE(store.Resolve("to").has_value());
    EXPECT_TRUE(store.Resolve("from").has_value());
  }
}

// A failed write reverts the file between the lookup that loads it and the access to its mapping.
TEST(FileFailures, AQueryOfARevertedFileFindsItsLastCommit) {
  for (const bool seek : {false, true}) {
    TestStore store;
    ASSERT_OK(store.WriteFile("a", Pattern(1, kMiB)));
    ASSERT_OK(store->SyncAll());
    ASSERT_OK(store.Remount());
    const InodePtr file = store.OpenPath("a").value();
    const auto put_back = [&] {
      ASSERT_OK(store.WriteAt(file, 0, Pattern(2, kBlock)));
      store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
      static_cast<void>(store->Sync(file).has_value());
    };
    std::atomic<bool> stop{false};
    std::thread writer([&] {
      for (int round = 0; round < 200; ++round) put_back();
      stop = true;
    });
    uint64_t wrong = 0;
    while (!stop) {
      if (seek) {
        wrong += store->files().Seek(file, 0, SeekTarget::kData).value_or(1) != 0;
      } else {
        const auto extents = store->files().Extents(file, FileBlock{0}, 10);
        wrong += !extents || extents->empty();
      }
    }
    writer.join();
    EXPECT_EQ(wrong, 0U);
  }
}

TEST(FileFailures, AFailedWriteLeavesTheBlocksOfTheLastCommit) {
  TestStore store;
  const uint64_t fresh = store->Space().free.value;
  {
    const InodePtr file = store.Create("a").value();
    ASSERT_OK(store.WriteAt(file, 0, Pattern(1, 10 * kBlock)));
    ASSERT_OK(store->Sync(file));
    store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
    ASSERT_OK(store.WriteAt(file, 0, Pattern(2, 20 * kBlock)));
    ASSERT_FALSE(store->Sync(file).has_value());
    EXPECT_EQ(store->names().GetAttributes(file->id)->blocks_512, 10 * kBlock / 512);
    EXPECT_EQ(store->Space().free.value, fresh - 10);
    store->CloseFile(file);
  }
  ASSERT_OK(store->names().Unlink(kRootInode, "a"));
  EXPECT_EQ(store->Space().free.value, fresh);
}

TEST(FileFailures, AFailedWriteOfTheLogMakesTheStoreReadOnly) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, "data"));
  store.device().Fail(FaultDevice::Target::kSynchronousWrite, {.nth = 1});
  EXPECT_FALSE(store->Sync(file).has_value());
  EXPECT_TRUE(store->read_only());
}

TEST(FileFailures, AFailedChangeOfNamesMakesTheStoreReadOnly) {
  TestStore store({.store = {.commit_interval = std::chrono::hours(1), .memory = ByteCount{48 * kMiB}}});
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, "data"));
  store.kv().FailWrite(1);
  EXPECT_FALSE(store.Create("b").has_value());
  EXPECT_TRUE(store->read_only());
  EXPECT_EQ(store.WriteAt(file, 0, "more").error().code, ErrorCode::kReadOnly);
  EXPECT_FALSE(store->Sync(file).has_value());
  EXPECT_EQ(store.device().counts().writes, 0U);
}

TEST(FileFailures, AReadFailureIsAnErrorOfThatReadAlone) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(13, kMiB)));
  ASSERT_OK(store->Sync(file));
  const auto read = [&] { return store.ReadAt(file, 300 * kKiB, 200 * kKiB); };
  const uint64_t before = store.device().counts().reads;
  store.device().Fail(FaultDevice::Target::kRead, {.nth = 1, .and_later = true});
  EXPECT_EQ(read().error().code, ErrorCode::kIo);
  EXPECT_EQ(store.device().counts().reads - before, 2U) << "the whole, and its first block";
  EXPECT_EQ(store.ReadAt(file, 0, kMiB).error().code, ErrorCode::kIo);
  EXPECT_LT(store.device().counts().reads - before, 20U) << "a device that reads nothing";
  store.device().StopFailing();
  EXPECT_TRUE(Must(read()) == Pattern(13, kMiB).substr(300 * kKiB, 200 * kKiB));
  store.device().Fail(FaultDevice::Target::kRead, {.nth = 1});
  EXPECT_TRUE(Must(read()) == Pattern(13, kMiB).substr(300 * kKiB, 200 * kKiB)) << "its blocks are read again";
}

TEST(FileFailures, AnUnreadableBlockCostsNoOther) {
  TestStore store;
  const std::string data = Pattern(14, 4 * kMiB);
  ASSERT_OK(store.WriteFile("a", data));
  ASSERT_OK(store->SyncAll());
  const auto extents = Must(store->files().Extents(store.OpenPath("a").value(), FileBlock{0}, 10));
  ASSERT_EQ(extents.size(), 1U);
  constexpr uint64_t kBad = 3 * kMiB / 2;
  ASSERT_OK(store.Remount());
  store.device().FailReadsAt(ToBytes(extents[0].start) + ByteCount{kBad + 17});
  const InodePtr file = store.OpenPath("a").value();
  const auto is_right = [&](uint64_t offset, uint64_t size) {
    const auto read = store.ReadAt(file, offset, size);
    return read && *read == data.substr(offset, size);
  };
  EXPECT_TRUE(is_right(0, kBlock)) << "in the same chunk";
  EXPECT_TRUE(is_right(0, kBad));
  EXPECT_TRUE(is_right(kBad + kBlock, 4 * kMiB - kBad - kBlock));
  EXPECT_EQ(store.ReadAt(file, kBad, kBlock).error().code, ErrorCode::kIo);
  EXPECT_EQ(store.ReadAt(file, 0, 4 * kMiB).error().code, ErrorCode::kIo);
  EXPECT_EQ(store->statistics().checksum_errors, 0U);
  store.device().StopFailing();
  EXPECT_TRUE(is_right(0, 4 * kMiB));
}

TEST(FileFailures, BlocksThatWereNotWrittenAreNoDamage) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(1, 6 * kMiB)));
  ASSERT_OK(store->Sync(file));
  store.device().Hold();
  store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
  ASSERT_OK(store.WriteAt(file, 0, Pattern(2, 6 * kMiB)));
  store.device().WaitForHeld(2);  // so the file is not reverted yet
  store.device().CompleteOne();
  auto read = std::async(std::launch::async, [&] { return store.ReadAt(file, 0, kBlock); });
  EXPECT_EQ(read.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  store.device().Release();
  EXPECT_EQ(read.get().error().code, ErrorCode::kIo);
  EXPECT_EQ(store->Sync(file).error().code, ErrorCode::kIo);
  EXPECT_TRUE(Must(store.ReadAll(file)) == Pattern(1, 6 * kMiB));
  EXPECT_EQ(store->statistics().checksum_errors, 0U);
}

TEST(FileFailures, AnUnlinkThatFailsLeavesTheFileAsItWas) {
  for (const bool loaded : {false, true}) {
    TestStore store;
    std::string data = Pattern(1, 2 * kMiB);
    ASSERT_OK(store.WriteFile("a", data));
    ASSERT_OK(store->SyncAll());
    ASSERT_OK(store.Remount());
    if (loaded) {
      const InodePtr file = store.OpenPath("a").value();
      ASSERT_OK(store.WriteAt(file, 100, "new"));
      data.replace(100, 3, "new");
      store->CloseFile(file);
    }
    const uint64_t free = store->Space().free.value;
    store.kv().FailWrite(1);
    EXPECT_FALSE(store->names().Unlink(kRootInode, "a").has_value());
    EXPECT_TRUE(Must(store.ReadPath("a")) == data);
    EXPECT_EQ(store->Space().free.value, free);
  }
}

}  // namespace
}  // namespace weightfs
