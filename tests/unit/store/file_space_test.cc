// SPDX-License-Identifier: Apache-2.0
// The pool's space on the data path: reservations of writes, errors of a full pool, and freed space.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "meta/keys.h"
#include "store/wal/wal_format.h"
#include "tests/support/result_asserts.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

TEST(FileSpace, FallocatedSpaceIsWrittenInPlaceEvenWhenThePoolIsFull) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store->files().Fallocate(file, FallocateMode::kAllocate, 0, 8 * kMiB));
  EXPECT_EQ(store.SizeOf(file), 8 * kMiB);
  EXPECT_TRUE(Must(store.ReadAt(file, 4 * kMiB, 10)) == std::string(10, '\0'));
  const InodePtr filler = store.Create("filler").value();
  uint64_t filled = 0;
  while (store.WriteAt(filler, filled, Pattern(7, kMiB))) filled += kMiB;
  ASSERT_EQ(store.WriteAt(filler, filled, Pattern(7, kMiB)).error().code, ErrorCode::kNoSpace);
  const std::string data = Pattern(8, 8 * kMiB);
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->Sync(file));
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == data);
}

TEST(FileSpace, AFullPoolFailsTheWriteAndDeletingFreesTheSpace) {
  TestStore store;
  const uint64_t fresh = store->Space().free.value;
  const InodePtr file = store.Create("big").value();
  uint64_t size = 0;
  while (store.WriteAt(file, size, Pattern(size, kMiB))) size += kMiB;
  EXPECT_GE(size, 60 * kMiB);
  ASSERT_OK(store->Sync(file));
  EXPECT_TRUE(Must(store.ReadAt(file, size - kMiB, kMiB)) == Pattern(size - kMiB, kMiB));
  store->CloseFile(file);
  ASSERT_OK(store->names().Unlink(kRootInode, "big"));
  EXPECT_EQ(store->Space().free.value, fresh);
  const InodePtr again = store.Create("again").value();
  ASSERT_OK(store.WriteAt(again, 0, Pattern(9, 30 * kMiB)));
  ASSERT_OK(store->Sync(again));
  EXPECT_TRUE(Must(store.ReadAll(again)) == Pattern(9, 30 * kMiB));
}

// After a repair with losses the index is older than the log on the devices, which may have taken blocks of its files.
TEST(FileSpace, AReplacedLogKeepsOnlyWhatNoFileHas) {
  TestStore store;
  const std::string data = Pattern(1, 3 * kMiB);
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->SyncAll());
  const FileExtent extent = Must(store->files().Extents(file, FileBlock{0}, 1)).at(0);
  const BlockRun within{extent.start + BlockCount{5}, BlockCount{50}};
  const BlockRun across{within.end(), extent.count + BlockCount{100}};
  TestStoreOptions options;
  options.replaced = {{.run = {extent.device, within}}, {.run = {extent.device, across}}};
  TestStore repaired(store.journal().ImageAt(store.journal().size()), options);
  ASSERT_OK(repaired.opened());
  EXPECT_FALSE(repaired->read_only());
  const InodePtr all = repaired.Create("b").value();
  uint64_t size = 0;
  while (repaired.WriteAt(all, size, Pattern(2, kMiB))) size += kMiB;
  EXPECT_GT(size, 50 * kMiB);
  ASSERT_OK(repaired->SyncAll());
  EXPECT_TRUE(Must(repaired.ReadPath("a")) == data);
}

// A batch of many deletions delays the batches of others.
TEST(FileSpace, ATruncationOfManyExtentsIsAFewChangesOfTheCatalog) {
  constexpr uint64_t kExtents = 5000, kStep = 2 * kBlockSize, kKept = 100, kAgain = 10;
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const auto write = [&](uint64_t count, uint64_t seed) {
    for (uint64_t i = 0; i < count; ++i) ASSERT_OK(store.WriteAt(file, i * kStep, Pattern(seed + i, kBlockSize)));
  };
  write(kExtents, 1);
  ASSERT_OK(store->Sync(file));
  ASSERT_OK(store->files().Truncate(file, kKept * kStep));
  const size_t begin = store.journal().size();
  ASSERT_OK(store.WriteAt(file, (kExtents + 7) * kStep, Pattern(2, kBlockSize)));  // beyond the shortest end
  ASSERT_OK(store->Sync(file));
  size_t changes = 0;
  const auto events = store.journal().events();
  for (size_t i = begin; i < events.size(); ++i) {
    if (events[i].batch != nullptr) changes += events[i].batch->changes().size();
  }
  EXPECT_LT(changes, 100U);
  ASSERT_OK(store.Remount());
  const InodePtr again = store.OpenPath("a").value();
  for (uint64_t i = 0; i < kKept; ++i) {
    ASSERT_TRUE(Must(store.ReadAt(again, i * kStep, kBlockSize)) == Pattern(1 + i, kBlockSize)) << i;
  }
  EXPECT_TRUE(Must(store.ReadAt(again, kKept * kStep, kAgain * kStep)) == std::string(kAgain * kStep, '\0'));
  EXPECT_TRUE(Must(store.ReadAt(again, (kExtents + 7) * kStep, kBlockSize)) == Pattern(2, kBlockSize));
  EXPECT_EQ(store->files().Extents(again, FileBlock{0}, kExtents).value().size(), kKept + 1);
}

TEST(FileSpace, APunchedRangeOfManyExtentsIsAFewChangesOfTheCatalog) {
  constexpr uint64_t kExtents = 5000, kStep = 2 * kBlockSize, kKept = 2500;
  for (const FallocateMode mode : {FallocateMode::kPunchHole, FallocateMode::kZeroRangeKeepSize}) {
    TestStore store;
    const InodePtr file = store.Create("a").value();
    const auto block = [&](uint64_t i) { return Pattern(1 + i, kBlockSize); };
    for (uint64_t i = 0; i < kExtents; ++i) ASSERT_OK(store.WriteAt(file, i * kStep, block(i)));
    ASSERT_OK(store->Sync(file));
    const size_t begin = store.journal().size();
    // One extent in the middle stays, and one is written again.
    ASSERT_OK(store->files().Fallocate(file, mode, kStep, (kKept - 1) * kStep));
    ASSERT_OK(store->files().Fallocate(file, mode, (kKept + 1) * kStep, (kExtents - kKept - 2) * kStep));
    ASSERT_OK(store.WriteAt(file, 10 * kStep, Pattern(3, kBlockSize)));
    ASSERT_OK(store->Sync(file));
    size_t changes = 0;
    const auto events = store.journal().events();
    for (size_t i = begin; i < events.size(); ++i) {
      if (events[i].batch != nullptr) changes += events[i].batch->changes().size();
    }
    EXPECT_LT(changes, 100U);
    ASSERT_OK(store.Remount());
    const InodePtr again = store.OpenPath("a").value();
    for (const uint64_t i : {uint64_t{0}, kKept, kExtents - 1}) {
      EXPECT_TRUE(Must(store.ReadAt(again, i * kStep, kBlockSize)) == block(i)) << i;
    }
    EXPECT_TRUE(Must(store.ReadAt(again, 10 * kStep, kBlockSize)) == Pattern(3, kBlockSize));
    EXPECT_TRUE(Must(store.ReadAt(again, 11 * kStep, 20 * kStep)) == std::string(20 * kStep, '\0'));
    if (mode == FallocateMode::kPunchHole) {
      EXPECT_EQ(store->files().Extents(again, FileBlock{0}, kExtents).value().size(), 4U);
    }
  }
}

// The log has space for a small batch even in a full pool.
TEST(FileSpace, ADeletionIsASmallBatch) {
  constexpr uint64_t kStep = 2 * kBlockSize;
  for (const uint64_t extents : {800, 1000, 3000}) {
    TestStore store;
    const InodePtr file = store.Create("a").value();
    for (uint64_t i = 0; i < extents; ++i) ASSERT_OK(store.WriteAt(file, i * kStep, Pattern(i, kBlockSize)));
    ASSERT_OK(store->Sync(file));
    for (int i = 0; i < 100; ++i) {
      const std::string name = "user." + std::to_string(i) + std::string(240, 'n');
      ASSERT_OK(store->names().SetExtendedAttribute(file->id, name, "", AttributeWrite::kAny));
    }
    const size_t begin = store.journal().size();
    ASSERT_OK(store->names().Unlink(kRootInode, "a"));
    store->CloseFile(file);
    ASSERT_OK(store->SyncAll());
    const auto events = store.journal().events();
    size_t batches = 0;
    for (size_t i = begin; i < events.size(); ++i) {
      if (events[i].batch == nullptr) continue;
      ++batches;
      EXPECT_LE(wal::EncodePart(*events[i].batch, {}).size(), kSmallBatch) << extents;
    }
    EXPECT_GE(batches, 2U);
    const KvContent content = store.kv().content();
    for (const auto& [key, value] : content) {
      EXPECT_TRUE(key.front() != keys::kExtent && key.front() != keys::kAttribute) << key.front();
    }
  }
}

TEST(FileSpace, ManyScatteredChangesAreCommittedEarly) {
  constexpr uint64_t kChanges = 33'000, kStep = 2 * kBlockSize;
  TestStoreOptions options;
  options.device_size = ByteCount{kGiB};
  options.store.commit_interval = std::chrono::hours(1);
  TestStore store(options);
  const InodePtr file = store.Create("a").value();
  for (const FallocateMode mode : {FallocateMode::kAllocate, FallocateMode::kPunchHole}) {
    const size_t begin = store.journal().size();
    for (uint64_t change = 1; change <= kChanges; ++change) {
      ASSERT_OK(store->files().Fallocate(file, mode, change * kStep, kBlockSize));
    }
    const auto is_committed = [&] {  // by the committer's own thread, long before the interval ends
      const auto events = store.journal().events();
      const auto is_batch = [](const Journal::Event& event) { return event.batch != nullptr; };
      return std::any_of(events.begin() + static_cast<ptrdiff_t>(begin), events.end(), is_batch);
    };
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (!is_committed() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(is_committed());
    ASSERT_OK(store->Sync(file));
  }
}

TEST(FileSpace, ManyScatteredWritesAreCommittedInSeveralBatches) {
  constexpr uint64_t kWrites = 40'000, kStep = 2 * kBlockSize;
  TestStoreOptions options;
  options.device_size = ByteCount{384 * kMiB};
  options.store.commit_interval = std::chrono::hours(1);
  TestStore store(options);
  const InodePtr file = store.Create("a").value();
  const std::string block = Pattern(1, kBlockSize);
  for (uint64_t i = 0; i < kWrites; ++i) ASSERT_OK(store.WriteAt(file, i * kStep, block));
  ASSERT_OK(store->Sync(file));
  size_t largest = 0;
  for (const auto& event : store.journal().events()) {
    if (event.batch != nullptr) largest = std::max(largest, event.batch->changes().size());
  }
  EXPECT_LT(largest, kWrites);
  ASSERT_OK(store.Remount());
  EXPECT_EQ(store->files().Extents(store.OpenPath("a").value(), FileBlock{0}, kWrites + 1).value().size(), kWrites);
}

TEST(FileSpace, AnUnlinkedFileCountsAsFreeWhileItIsNotOpen) {
  TestStore store;
  const uint64_t fresh = store->Space().free.value;
  constexpr uint64_t kBlocks = kMiB / kBlockSize;
  const auto used = [&] { return fresh - store->Space().free.value; };
  InodePtr file = store.Create("a").value();
  const InodeId ino = file->id;
  store->inodes().AddLookups(ino, 1);  // the kernel has not forgotten it
  ASSERT_OK(store.WriteAt(file, 0, Pattern(1, kMiB)));
  ASSERT_OK(store->Sync(file));
  ASSERT_OK(store.WriteAt(file, kMiB, Pattern(2, kMiB)));  // still in memory
  EXPECT_EQ(used(), 2 * kBlocks);
  ASSERT_OK(store->names().Unlink(kRootInode, "a"));
  EXPECT_EQ(used(), 2 * kBlocks);
  store->CloseFile(file);
  EXPECT_EQ(used(), 0U);
  ASSERT_OK(store->SyncAll());
  EXPECT_EQ(used(), 0U);
  for (const uint64_t size : {kMiB, kMiB / 2, 2 * kMiB}) {  // as /proc/self/fd opens it again
    file = store->OpenFile(ino, false).value();
    ASSERT_OK(store->files().Truncate(file, std::min(size, kMiB)));
    EXPECT_GE(used(), std::min(size, kMiB / 2) / kBlockSize);
    store->CloseFile(file);
    EXPECT_EQ(used(), 0U);
  }
  store->names().Forget(ino, 1);
  EXPECT_EQ(used(), 0U);
  ASSERT_OK(store.Remount());
  EXPECT_EQ(used(), 0U);
}

// Unlinks "a", which the kernel knows and nobody has open, and opens it again, as /proc/self/fd does.
void ExpectContentAfterUnlink(TestStore& store, const std::string& content) {
  const uint64_t fresh = store->Space().free.value + BlocksFor(ByteCount{content.size()}).value;
  const InodeId ino = store.Resolve("a").value();
  store->inodes().AddLookups(ino, 1);
  ASSERT_OK(store->names().Unlink(kRootInode, "a"));
  EXPECT_EQ(store->Space().free.value, fresh);
  ASSERT_OK(store.WriteFile("b", Pattern(7, kMiB)));  // not in the place of its blocks
  ASSERT_OK(store->SyncAll());
  const InodePtr file = store->OpenFile(ino, false).value();
  EXPECT_TRUE(store.ReadAll(file).value() == content);
  EXPECT_EQ(store->Space().free.value, fresh - (kMiB + content.size()) / kBlockSize);
  store->CloseFile(file);
  store->names().Forget(ino, 1);
  ASSERT_OK(store.Remount());
  EXPECT_EQ(store->Space().free.value, fresh - kMiB / kBlockSize);
}

TEST(FileSpace, AFileThatWasDeletedInOneBatchIsOpenedAgain) {
  TestStore store;
  ASSERT_OK(store.WriteFile("a", Pattern(1, 5 * kBlockSize)));
  ASSERT_OK(store->SyncAll());
  ExpectContentAfterUnlink(store, Pattern(1, 5 * kBlockSize));
}

TEST(FileSpace, AFileThatWasDeletedBeforeItWasLoadedIsOpenedAgain) {
  TestStore store;
  ASSERT_OK(store.WriteFile("a", Pattern(1, 5 * kBlockSize)));
  ASSERT_OK(store.Remount());
  ExpectContentAfterUnlink(store, Pattern(1, 5 * kBlockSize));
}

TEST(FileSpace, AnUnlinkedFileKeepsWhatWasNotCommitted) {
  TestStore store;
  ASSERT_OK(store.WriteFile("a", Pattern(1, 5 * kBlockSize)));
  ExpectContentAfterUnlink(store, Pattern(1, 5 * kBlockSize));
}

TEST(FileSpace, AnUnlinkedFileKeepsWhatIsWrittenWhileItsRecordsAreRead) {
  TestStore store;
  ASSERT_OK(store.WriteFile("a", Pattern(1, 5 * kBlockSize)));
  ASSERT_OK(store->SyncAll());
  const InodeId ino = store.Resolve("a").value();
  std::string content = Pattern(1, 5 * kBlockSize);
  int reads = 0;
  store.kv().AfterGet(
      [&] {
        if (++reads != 2) return;  // the first extent, after the name
        const InodePtr file = store->OpenFile(ino, false).value();
        ASSERT_OK(store.WriteAt(file, 0, "new"));
        store->CloseFile(file);
      },
      /*once=*/false);
  store->inodes().AddLookups(ino, 1);
  ASSERT_OK(store->names().Unlink(kRootInode, "a"));
  store.kv().AfterGet(nullptr);
  EXPECT_GE(reads, 2);
  EXPECT_TRUE(store.kv().content().contains(keys::Orphan(ino))) << "the committer writes its records";
  EXPECT_TRUE(store.ReadAll(store->OpenFile(ino, false).value()).value() == content.replace(0, 3, "new"));
}

// The file "a", closed and loaded without its checksums, which the kernel knows.
InodePtr LoadWithoutChecksums(TestStore& store) {
  EXPECT_TRUE(store.WriteFile("a", Pattern(1, 5 * kBlockSize)));
  EXPECT_TRUE(store.Remount());
  const InodePtr file = store->inodes().Get(store.Resolve("a").value()).value();
  store->inodes().AddLookups(file->id, 1);
  EXPECT_TRUE(store->files().Extents(file, FileBlock{0}, 1));
  return file;
}

TEST(FileSpace, ATruncationByNameSucceedsBesideAnUnlink) {
  TestStore store;
  const InodeId ino = LoadWithoutChecksums(store)->id;
  store.kv().BeforeGet([&] { ASSERT_OK(store->names().Unlink(kRootInode, "a")); });
  const auto changed = store->SetAttributes(ino, {.size = 100});
  ASSERT_OK(changed);
  EXPECT_EQ(changed->size, 100U);
  EXPECT_EQ(changed->links, 0U) << "the unlink was during the truncation";
  EXPECT_TRUE(store.ReadAll(store->OpenFile(ino, false).value()).value() == Pattern(1, 5 * kBlockSize).substr(0, 100));
}

TEST(FileSpace, NoChecksumIsMissedWhileAFileIsDeleted) {
  TestStore store;
  const InodePtr file = LoadWithoutChecksums(store);
  store.kv().BeforeGet([&] { ASSERT_OK(store->names().Unlink(kRootInode, "a")); });
  EXPECT_EQ(store->files().Truncate(file, 100).error().code, ErrorCode::kStale);
}

TEST(FileSpace, ChecksumsThatWereMissingWhileAFileWasDeletedAreReadAgain) {
  TestStore store;
  const InodePtr file = LoadWithoutChecksums(store);
  store.kv().BeforeGet([&] {
    ASSERT_OK(store->names().Unlink(kRootInode, "a"));
    store.kv().AfterGet([&] { ASSERT_OK(store->names().Get(file->id)); });
  });
  ASSERT_OK(store->files().Truncate(file, 100));
  EXPECT_TRUE(store.ReadAll(file).value() == Pattern(1, 5 * kBlockSize).substr(0, 100));
}

TEST(FileSpace, AnUnlinkReadsNoRecordsOfALargeFile) {
  TestStore store;
  ASSERT_OK(store.WriteFile("a", Pattern(1, 2 * kMiB)));
  ASSERT_OK(store.Remount());
  const InodeId ino = store.Resolve("a").value();
  store->inodes().AddLookups(ino, 1);
  int reads = 0;
  store.kv().AfterGet([&] { ++reads; }, /*once=*/false);
  ASSERT_OK(store->names().Unlink(kRootInode, "a"));
  store.kv().AfterGet(nullptr);
  EXPECT_EQ(reads, 1) << "the name";
}

TEST(FileSpace, AnUnnamedFileThatGetsANameCountsAsUsed) {
  TestStore store;
  const uint64_t fresh = store->Space().free.value;
  const InodeId ino = store->names().CreateUnnamed(kRootInode, {.mode = S_IFREG | 0644}).value().ino;
  store->inodes().AddLookups(ino, 1);
  const InodePtr file = store->OpenFile(ino, false).value();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(1, kMiB)));
  store->CloseFile(file);
  EXPECT_EQ(store->Space().free.value, fresh);
  ASSERT_OK(store->names().Link(ino, kRootInode, "a"));
  EXPECT_EQ(store->Space().free.value, fresh - kMiB / kBlockSize);
  ASSERT_OK(store->names().Unlink(kRootInode, "a"));
  EXPECT_EQ(store->Space().free.value, fresh);
  store->names().Forget(ino, 1);
  EXPECT_EQ(store->Space().free.value, fresh);
}

// A user may keep many unlinked files and ask all the time.
TEST(FileSpace, StatisticsWaitForNoChangeOfNames) {
  TestStore store;
  std::promise<void> reached, go;
  store.kv().AfterGet([&] {
    reached.set_value();
    go.get_future().wait();
  });
  std::thread maker([&] {
    EXPECT_TRUE(store->names().Create(kRootInode, "d", {.mode = S_IFDIR | 0755}));  // reads under the mutex of names
  });
  reached.get_future().wait();
  auto space = std::async(std::launch::async, [&] { return store->Space(); });
  EXPECT_EQ(space.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  go.set_value();
  maker.join();
}

TEST(FileSpace, AnAllocationWithoutSpaceWaitsForClosesUnderWay) {
  enum Call { kWrite, kAllocate, kCopy, kReserve };
  for (const Call call : {kWrite, kAllocate, kCopy, kReserve}) {
    TestStore store;
    const InodePtr source = store.Create("source").value(), target = store.Create("target").value();
    ASSERT_OK(store.WriteAt(source, 0, Pattern(1, 8 * kMiB)));
    InodePtr going = store.Create("going").value();
    for (uint64_t size = 0; store.WriteAt(going, size, Pattern(size, kMiB));) size += kMiB;
    ASSERT_OK(store->names().Unlink(kRootInode, "going"));
    int waits = 0;
    store->files().WaitForCloses([&] {
      ++waits;
      if (going) store->CloseFile(std::exchange(going, nullptr));
    });
    const auto ask = [&]() -> Result<void> {
      switch (call) {
        case kWrite: return store.WriteAt(target, 0, Pattern(2, 2 * kMiB));
        case kAllocate: return store->files().Fallocate(target, FallocateMode::kAllocate, 0, 8 * kMiB);
        case kCopy: {
          const auto copied = store->files().CopyRange(source, 0, target, 0, 8 * kMiB);
          if (!copied) return copied.error();
          EXPECT_EQ(*copied, 8 * kMiB);
          return {};
        }
        case kReserve: {
          const auto grant = store->files().Reserve(target, FileBlock{0}, BlockCount{8 * kMiB / kBlockSize});
          if (!grant) return grant.error();
          return {};
        }
      }
      return {};
    };
    ASSERT_OK(ask());
    EXPECT_EQ(waits, 1);
    store->files().WaitForCloses(nullptr);
  }
}

TEST(FileSpace, ZeroingARangeReusesWhatItReplaces) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(3, 40 * kMiB)));
  ASSERT_OK(store->Sync(file));
  ASSERT_OK(store->files().Fallocate(file, FallocateMode::kZeroRange, 0, 40 * kMiB));
  EXPECT_TRUE(Must(store.ReadAt(file, 7 * kMiB, kMiB)) == std::string(kMiB, '\0'));
}

TEST(FileSpace, AZeroRangeWithoutSpaceIsCommittedAsItIsRead) {
  TestStore store;
  const std::string old = Pattern(3, 8 * kMiB);
  ASSERT_OK(store.WriteFile("a", old));
  ASSERT_OK(store->SyncAll());
  const uint64_t before = store->Space().free.value;
  const InodePtr file = store.OpenPath("a").value();
  EXPECT_EQ(store->files().Fallocate(file, FallocateMode::kZeroRange, kMiB, 100 * kMiB).error().code,
            ErrorCode::kNoSpace);
  const std::string shown = Must(store.ReadAll(file));
  EXPECT_EQ(shown.size(), old.size());
  EXPECT_TRUE(shown.substr(0, kMiB) == old.substr(0, kMiB));
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == shown);
  EXPECT_GE(store->Space().free.value, before);
}

// A pool with committed files "a" and "b", both replaced by a half and open, and a large file.
struct TwoReplacements {
  TwoReplacements() {
    EXPECT_TRUE(store.WriteFile("large", Pattern(1, 20 * kMiB)) && store.WriteFile("a", old) &&
                store.WriteFile("b", old) && store->SyncAll());
    a = Replace("a");
    b = Replace("b");
    EXPECT_TRUE(store->SyncAll());
  }
  InodePtr Replace(const char* name) {
    InodePtr file = store.OpenPath(name, /*truncate=*/true).value();
    EXPECT_TRUE(store.WriteAt(file, 0, half));
    return file;
  }
  // Allocates so much more than is available. Statistics counts the old content of so many bytes as free.
  Result<void> Allocate(const InodePtr& file, uint64_t more, uint64_t replaced = 8 * kMiB) {
    const uint64_t available = ToBytes(store->Space().available).value - replaced;
    return store->files().Fallocate(file, FallocateMode::kAllocateKeepSize, kGiB, available + more);
  }
  std::string AfterCrash(const char* name) {
    TestStore crashed(store.journal().ImageAt(store.journal().size()), {});
    return crashed.ReadPath(name).value_or("unreadable");
  }
  const std::string old = Pattern(2, 4 * kMiB), half = Pattern(3, kMiB);
  TestStore store;
  InodePtr a, b;
};

TEST(FileSpace, AnAllocationThatDoesNotFitAnywayCommitsNoHalfReplacedFile) {
  TwoReplacements pool;
  EXPECT_EQ(pool.Allocate(pool.store.Create("other").value(), 9 * kMiB).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(pool.Allocate(pool.a, 9 * kMiB).error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(pool.AfterCrash("a") == pool.old && pool.AfterCrash("b") == pool.old);
}

TEST(FileSpace, AnAllocationCommitsTheHalfReplacedFileItselfFirst) {
  TwoReplacements pool;
  ASSERT_OK(pool.Allocate(pool.b, 3 * kMiB));
  EXPECT_TRUE(pool.AfterCrash("a") == pool.old);
  EXPECT_TRUE(pool.AfterCrash("b") == pool.half);
}

TEST(FileSpace, AnAllocationCommitsNoHalfReplacedFileWithoutWhichItFits) {
  TwoReplacements pool;
  ASSERT_OK(pool.store.WriteFile("c", Pattern(4, 12 * kMiB)));
  ASSERT_OK(pool.store->SyncAll());
  const InodePtr c = pool.Replace("c");
  // It fits with "c" alone, which has been open for the shortest time.
  ASSERT_OK(pool.Allocate(pool.a, 9 * kMiB, /*replaced=*/20 * kMiB));
  EXPECT_TRUE(pool.AfterCrash("a") == pool.old && pool.AfterCrash("b") == pool.old);
  EXPECT_TRUE(pool.AfterCrash("c") == pool.half);
}

TEST(FileSpace, AnAllocationCommitsTheNextHalfReplacedFileIfOneFails) {
  TwoReplacements pool;
  pool.store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
  ASSERT_OK(pool.Allocate(pool.store.Create("other").value(), 3 * kMiB));
  EXPECT_TRUE(pool.AfterCrash("a") == pool.old) << "its commit has failed";
  EXPECT_TRUE(pool.AfterCrash("b") == pool.half);
}

TEST(FileSpace, OldContentThatALeasePinsMakesNoSpace) {
  TestStore store;
  const std::string old = Pattern(2, 4 * kMiB);
  ASSERT_OK(store.WriteFile("a", old));
  ASSERT_OK(store->SyncAll());
  const InodePtr file = store.OpenPath("a", /*truncate=*/false).value();
  const auto lease = store->files().LeaseRead(file, 0, old.size());
  ASSERT_OK(lease);
  const InodePtr half = store.OpenPath("a", /*truncate=*/true).value(), other = store.Create("b").value();
  ASSERT_OK(store.WriteAt(half, 0, "half"));
  const uint64_t available = ToBytes(store->Space().available).value;
  EXPECT_EQ(store->files().Fallocate(other, FallocateMode::kAllocate, 0, available).error().code, ErrorCode::kNoSpace);
  TestStore crashed(store.journal().ImageAt(store.journal().size()), {});
  EXPECT_TRUE(Must(crashed.ReadPath("a")) == old);
}

TEST(FileSpace, AnAllocationThatCanNeverFitCommitsNoHalfReplacedFile) {
  TestStore store;
  const std::string old = Pattern(1, 4 * kMiB);
  ASSERT_OK(store.WriteFile("a", old));
  ASSERT_OK(store->SyncAll());
  const InodePtr half = store.OpenPath("a", /*truncate=*/true).value(), other = store.Create("b").value();
  ASSERT_OK(store.WriteAt(half, 0, Pattern(2, 2 * kMiB)));
  EXPECT_EQ(store->files().Fallocate(other, FallocateMode::kAllocate, 0, 4096 * kMiB).error().code,
            ErrorCode::kNoSpace);
  TestStore crashed(store.journal().ImageAt(store.journal().size()), {});
  EXPECT_TRUE(Must(crashed.ReadPath("a")) == old);
}

TEST(FileSpace, OverwritingAFullPoolReusesWhatCommitsGiveBack) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const uint64_t size = 24 * kMiB;
  for (int round = 0; round < 8; ++round) {
    for (uint64_t at = 0; at < size; at += kMiB) ASSERT_OK(store.WriteAt(file, at, Pattern(round * 100 + at, kMiB)));
  }
  ASSERT_OK(store->Sync(file));
  for (uint64_t at = 0; at < size; at += kMiB)
    EXPECT_TRUE(Must(store.ReadAt(file, at, kMiB)) == Pattern(700 + at, kMiB));
}

TEST(FileSpace, DirtyBlocksOverAllocatedSpaceNeedNoMore) {
  TestStore store({.store = {.commit_interval = std::chrono::hours(1), .memory = ByteCount{48 * kMiB}}});
  const InodePtr file = store.Create("a").value(), filler = store.Create("filler").value();
  ASSERT_OK(store->files().Fallocate(file, FallocateMode::kAllocate, 0, 48 * kMiB));
  for (uint64_t at = 0; store->files().Fallocate(filler, FallocateMode::kAllocate, at, 100 * kBlockSize);) {
    at += 100 * kBlockSize;
  }
  for (uint64_t at = 0; at < 32; ++at) ASSERT_OK(store.WriteAt(file, at * 128 * kKiB, Pattern(at, 60 * kKiB)));
  ASSERT_OK(store.WriteAt(file, 48 * kMiB, Pattern(1, kBlockSize)));
}

TEST(FileSpace, AFullPoolWhoseCommitsFailIsReadOnly) {
  TestStore store({.store = {.commit_interval = std::chrono::hours(1), .memory = ByteCount{48 * kMiB}}});
  const InodePtr file = store.Create("a").value();
  store.device().Fail(FaultDevice::Target::kFlush, {.nth = 1});
  Result<void> written;
  for (uint64_t size = 0; written; size += kMiB) written = store.WriteAt(file, size, Pattern(size, kMiB));
  EXPECT_EQ(written.error().code, ErrorCode::kReadOnly);
}

}  // namespace
}  // namespace weightfs
