// SPDX-License-Identifier: Apache-2.0
// The space of the log: in small pieces, after failed writes of its roots, in a full pool, and what a mark allows.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/store/wal/log_writer_rig.h"

namespace weightfs::wal {
namespace {

TEST_F(LogWriterTest, FreeSpaceInSmallPiecesHoldsAReplicaOfAnySize) {
  options_.largest_root = 2 * kKiB;
  FragmentFreeSpace();
  const uint64_t free = space_->Statistics().free.value;
  Start();
  for (uint64_t round = 0; round < 4; ++round) {
    Put(round * kRecords / 4, kRecords);
    Stop();
    const Root root = ReadRoot();
    EXPECT_EQ(root.lists.size(), kListCopies);
    EXPECT_GT(root.checkpoint_stream.segments.size() + root.log.segments.size(), 100U);
    ExpectRestored();
    Reopen();
  }
  const uint64_t bytes = writer_->statistics().bytes;
  EXPECT_LT(bytes, 8 * kMiB) << "replaced checkpoints and lists are freed";
  EXPECT_GE(space_->Statistics().free.value + bytes / kBlockSize, free - 4 * kMiB / kBlockSize) << "reserved";
  Stop();
}

TEST_F(LogWriterTest, ADamagedListIsReadFromItsCopy) {
  options_.largest_root = 2 * kKiB;
  FragmentFreeSpace();
  Start();
  Put(0, kRecords);
  Stop();
  const auto corrupt = [&](size_t copy) {
    const Root root = FindRoot(given_, std::nullopt).value().value();
    base_.Corrupt(ToBytes(root.lists[copy].segments.front().run.run.start) + ByteCount{100});
  };
  corrupt(0);
  ExpectRestored();
  corrupt(1);
  Root root = FindRoot(given_, std::nullopt).value().value();
  EXPECT_EQ(LoadSegments(given_, &root).error().code, ErrorCode::kCorrupt);
}

TEST_F(LogWriterTest, TheFirstRootWithListsLeavesNoOlderOne) {
  Start();
  Put(0, 100);
  Stop();
  ASSERT_TRUE(ReadRoot().lists.empty());
  options_.largest_root = 1;
  Reopen(/*fragmented=*/false);
  writer_->Renew();
  device_.WaitForRoots(3 * kRootOffsets.size() / 2);
  Stop();
  EXPECT_EQ(Roots().size(), kRootOffsets.size());
  for (const Root& root : Roots()) EXPECT_FALSE(root.lists.empty()) << root.sequence;
  ExpectRestored();
}

TEST_F(LogWriterTest, RootsWithListsCountOnlyIfAllWritersKnewThem) {
  options_.largest_root = 1;
  Start();
  Put(0, 100);
  Stop();
  Superblock superblock;
  superblock.device_size = kDevice;
  ASSERT_OK(WriteSuperblock(device_, superblock));
  EXPECT_TRUE(FindRoot(given_, std::nullopt).value().has_value());
  superblock.keeps_lists = false;
  ASSERT_OK(WriteSuperblock(device_, superblock));
  EXPECT_FALSE(FindRoot(given_, std::nullopt).value().has_value());
}

TEST_F(LogWriterTest, AFailedRootLeavesTheListsOfTheOneBefore) {
  options_.largest_root = 1;
  FragmentFreeSpace();
  Start();
  Put(0, kRecords);
  Stop();
  Reopen();
  const uint64_t free = space_->Statistics().free.value;
  device_.Fail(true);
  writer_->Renew();
  const uint64_t written = device_.roots();
  device_.WaitForRoots(written + 5);
  // The failed checkpoint, log and lists are held until the roots are equal again, and no retry adds to them.
  EXPECT_LT(free - space_->Statistics().free.value, 2 * kMiB / kBlockSize);
  device_.Fail(false);
  device_.WaitForRoots(written + 9);  // two of each, when they succeed: the root before, and the next
  Put(kRecords, 10);
  Stop();
  ExpectRestored();
}

// A root whose write fails, and the next one, leave the last good root, at every power cut.
TEST_F(LogWriterTest, AFailedRootLeavesTheRootBefore) {
  options_.description = std::string(1500, ' ');  // so that a root has several sectors
  Start();
  Put(0, 100);
  const size_t begun = journal_->size();
  const uint64_t written = device_.roots();
  device_.Fail(true);
  writer_->Renew();
  device_.WaitForRoots(written + 2);
  device_.Fail(false);
  device_.WaitForRoots(written + 6);  // two of each, when they succeed: the root before, and the next
  Stop();
  for (size_t cut = begun; cut <= journal_->size(); ++cut) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Restarted after = Restart(journal_->ImageAt(cut, {.seed = seed}));
      const auto found = FindRoot(after.borrowed(), std::nullopt).value();
      ASSERT_TRUE(found.has_value()) << "cut " << cut << ", seed " << seed;
      ASSERT_FALSE(found->newer_lost) << "cut " << cut << ", seed " << seed;
    }
  }
}

// One of two copies may be torn. If both are bad, there was perhaps a newer root than the one that is left.
TEST_F(LogWriterTest, TheLossOfARootIsNoticed) {
  Start();
  Put(0, 10);  // in the first segment of the log, which has a root of its own
  Stop();
  const Root newest = ReadRoot();
  ASSERT_FALSE(newest.newer_lost);
  base_.Corrupt(ByteOffset{kRootOffsets[newest.sequence % 2 + 2]} + ByteCount{100});
  EXPECT_EQ(ReadRoot().sequence, newest.sequence);
  base_.Corrupt(ByteOffset{kRootOffsets[newest.sequence % 2]} + ByteCount{100});
  EXPECT_EQ(ReadRoot().sequence, newest.sequence - 1);
  EXPECT_TRUE(ReadRoot().newer_lost);
}

// A copy that a failed write has damaged is overwritten before the other one.
TEST_F(LogWriterTest, TheLastIntactCopyOfARootIsNotOverwrittenFirst) {
  options_.description = std::string(1500, ' ');  // so that a root has several sectors
  Start();
  Put(0, 100);
  Stop();
  const Root newest = ReadRoot();
  base_.Corrupt(ByteOffset{kRootOffsets[newest.sequence % 2 + 2]} + ByteCount{100});
  Reopen(/*fragmented=*/false);
  const size_t begun = journal_->size();
  const uint64_t written = device_.roots();
  writer_->Renew();
  device_.WaitForRoots(written + 2);
  Stop();
  for (size_t cut = begun; cut <= journal_->size(); ++cut) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Restarted after = Restart(journal_->ImageAt(cut, {.seed = seed}));
      ASSERT_FALSE(FindRoot(after.borrowed(), std::nullopt).value()->newer_lost) << "cut " << cut << ", seed " << seed;
    }
  }
}

// A log that began anew below a root that a later read finds would lose to that one.
TEST_F(LogWriterTest, RootsThatCannotBeReadAreNotAbsent) {
  Start();
  Put(0, 100);
  Stop();
  base_.Fail(FaultDevice::Target::kRead, {.nth = 2});
  EXPECT_FALSE(ReadRoot().newer_lost) << "it is read again";
  base_.Fail(FaultDevice::Target::kRead, {.nth = 1, .and_later = true});
  EXPECT_EQ(FindRoot(given_, std::nullopt).error().code, ErrorCode::kIo);
}

// Older programs wrote both copies of a root before the flush, so a power cut may have torn both.
TEST_F(LogWriterTest, AnOlderProgramMayHaveLeftTwoTornCopies) {
  Start();
  Put(0, 100);
  Stop();
  const auto write = [&](Root root, bool ordered) {
    root.ordered = ordered;
    const std::string bytes = EncodeRoot(root);
    const HugePageMemory memory = HugePageMemory::Map(kRootCapacity).value();
    bytes.copy(reinterpret_cast<char*>(memory.data()), bytes.size());
    for (size_t copy = root.sequence % 2; copy < kRootOffsets.size(); copy += 2) {
      ASSERT_OK(device_.Write(ByteOffset{kRootOffsets[copy]}, {memory.data(), bytes.size()}));
    }
  };
  const Root newest = ReadRoot();
  for (const bool ordered : {true, false}) {
    write(newest, ordered);
    for (size_t copy = (newest.sequence + 1) % 2; copy < kRootOffsets.size(); copy += 2) {
      base_.Corrupt(ByteOffset{kRootOffsets[copy]} + ByteCount{100});
    }
    EXPECT_EQ(ReadRoot().newer_lost, ordered);
  }
  Reopen(/*fragmented=*/false);
  Put(100, 100);
  Stop();
  EXPECT_TRUE(ReadRoot().ordered);
  EXPECT_FALSE(ReadRoot().newer_lost);
  ExpectRestored();
}

TEST_F(LogWriterTest, FailedRootsKeepTheSpaceOfOneCheckpoint) {
  Start();
  Put(0, kRecords);
  device_.Fail(true);
  writer_->Renew();
  const uint64_t written = device_.roots();
  device_.WaitForRoots(written + 3);
  const uint64_t once = space_->Statistics().free.value;
  device_.WaitForRoots(written + 8);
  EXPECT_EQ(space_->Statistics().free.value, once);
  device_.Fail(false);
  Stop();
  ExpectRestored();
  EXPECT_LT(space_->total().value - space_->Statistics().free.value, 6 * kMiB / kBlockSize);
}

TEST_F(LogWriterTest, FreedBlocksAreUsedAgainOnlyBehindADurableMark) {
  options_.claim_delay = std::chrono::hours(1);
  Start();
  Put(0, 1);
  const BlockCount free = MostThatFits();
  const auto runs = Allocate(BlockCount{8});
  Put(1, 1);
  writer_->Retire(runs);
  ASSERT_OK(writer_->Commit());
  EXPECT_FALSE(space_->WouldFit(free, {}, false));
  Put(2, 1);  // a frame with a mark of the entry that freed the blocks, and its flush
  EXPECT_TRUE(space_->WouldFit(free, {}, false));
  Stop();
}

// Otherwise they would wait for the next change.
TEST_F(LogWriterTest, BlocksAreFreeAtOnceIfEveryEntryHasItsMark) {
  Start();
  Put(0, 1);
  const BlockCount free = MostThatFits();
  writer_->Retire(Allocate(BlockCount{8}));
  writer_->ReleaseRetired();
  writer_->Retire(Allocate(BlockCount{8}));
  EXPECT_TRUE(space_->WouldFit(free, {}, false));
  Stop();
}

TEST_F(LogWriterTest, WhatAnEntryHasFreedIsSpaceForOthers) {
  options_.claim_delay = std::chrono::hours(1);
  Start();
  const auto runs = Allocate(BlockCount{1024});
  SpaceReservation rest;
  for (uint64_t i = 0; i < 50000 && writer_->CheckSpace(KvChange::kGrow); i += 10) {
    TakeSpace(&rest);
    Put(i, 10);
  }
  ASSERT_FALSE(writer_->CheckSpace(KvChange::kGrow).has_value());
  KvBatch batch;
  batch.Delete("record0");
  ASSERT_OK(catalog_->Write(std::move(batch)));
  writer_->Retire(runs);
  EXPECT_TRUE(writer_->CheckSpace(KvChange::kGrow).has_value());
  Stop();
}

// While the catalog is small, df does not change when the log gets longer, or a checkpoint replaces it.
TEST_F(LogWriterTest, TheSpaceOfASmallCatalogIsConstant) {
  Start();
  Put(0, 100);
  const auto available = [&] { return space_->Statistics().available.value; };
  const uint64_t before = available();
  const auto checkpoints = [&] { return writer_->statistics().checkpoints; };
  for (int round = 0; round < 4; ++round) {
    for (const uint64_t seen = checkpoints(); checkpoints() == seen;) Put(0, 1);
    // The log may be longer than it should be when a checkpoint has waited for a processor. The next one frees it.
    const uint64_t seen = checkpoints();
    writer_->Renew();
    while (checkpoints() == seen || !writer_->statistics().intact) std::this_thread::yield();
    EXPECT_EQ(available(), before);
  }
  Stop();
}

// A large entry is refused before anything has changed, and others go on.
TEST_F(LogWriterTest, AnEntryThatDoesNotFitIsRefused) {
  Start();
  Put(0, 100);
  SpaceReservation rest;
  TakeSpace(&rest);
  KvBatch batch;
  for (int i = 0; i < 40; ++i) batch.Put("large" + std::to_string(i), std::string(kMiB, 'x'));
  EXPECT_EQ(catalog_->Write(std::move(batch)).error().code, ErrorCode::kNoSpace);
  EXPECT_FALSE(catalog_->failed());
  EXPECT_TRUE(writer_->has_space()) << "for others";
  EXPECT_FALSE(kv_->content().contains("large0"));
  Put(100, 100);
  Stop();
  ExpectRestored();
}

// Whatever others add meanwhile: a full pool refuses them first.
TEST_F(LogWriterTest, AcceptedChangesKeepTheirSpaceInTheLog) {
  constexpr size_t kAccepted = 2 * kMiB;
  Start();
  Put(0, 100);
  space_->AddUncommitted(kAccepted);
  ASSERT_OK(writer_->CheckSpace(KvChange::kGrow));
  SpaceReservation rest;
  TakeSpace(&rest);
  uint64_t next = 100;
  for (; next < 50000 && writer_->CheckSpace(KvChange::kGrow); next += 10) Put(next, 10);
  EXPECT_LT(next, 50000U);
  KvBatch batch;
  batch.Put("accepted", std::string(kAccepted, 'x'));
  batch.NoteAccepted();
  ASSERT_OK(catalog_->Write(std::move(batch)));
  space_->AddUncommitted(-static_cast<int64_t>(kAccepted));
  for (uint64_t i = 0; i < next; ++i) {
    KvBatch removal;
    removal.Delete("record" + std::to_string(i));
    ASSERT_OK(catalog_->Write(std::move(removal)));
  }
  ASSERT_OK(catalog_->Sync());
  EXPECT_FALSE(catalog_->failed());
  Stop();
  ExpectRestored();
}

TEST_F(LogWriterTest, ALargeEntryKeepsItsSpaceWhileItIsWritten) {
  Start();
  Put(0, 100);
  SpaceReservation rest;
  int frames = 0;
  std::function<void()> take = [&] {
    if (++frames == 3) return TakeSpace(&rest);
    device_.DuringFrame(take);
  };
  device_.DuringFrame(take);
  KvBatch batch;
  for (int i = 0; i < 20; ++i) batch.Put("large" + std::to_string(i), std::string(kMiB, 'x'));
  ASSERT_OK(catalog_->Write(std::move(batch)));
  ASSERT_OK(catalog_->Sync());
  EXPECT_EQ(frames, 3);
  EXPECT_FALSE(catalog_->failed());
  ExpectRestored();
  Stop();
}

TEST_F(LogWriterTest, AnEntryWhoseSizeCannotBeWrittenIsRefused) {
  options_.largest_entry = kMiB;
  Start();
  KvBatch batch;
  batch.Put("large", std::string(kMiB, 'x'));
  batch.NoteAccepted();
  EXPECT_EQ(catalog_->Write(std::move(batch)).error().code, ErrorCode::kNoSpace);
  Put(0, 10);
  Stop();
  ExpectRestored();
}

TEST_F(LogWriterTest, TheLogLeavesBlocksToOperationsThatFreeSpace) {
  Start();
  SpaceReservation rest;
  for (uint64_t i = 0; i < 50000 && writer_->CheckSpace(KvChange::kGrow); i += 10) {
    TakeSpace(&rest);
    Put(i, 10);
  }
  EXPECT_FALSE(writer_->has_space());
  SpaceReservation freeing;
  EXPECT_TRUE(space_->Reserve(&freeing, BlockCount{16}, /*privileged=*/true));
  Stop();
}

// What the entries behind the last mark have freed may be used after the next mount, so a root with a mark comes first.
TEST_F(LogWriterTest, AMountMakesAMarkBeforeItTakesSpace) {
  options_.claim_delay = std::chrono::hours(1);
  Start();
  Put(0, 10);
  const uint64_t last = ReadVersion(*catalog_).value().sequence;
  EXPECT_LT(FindTail(given_, ReadRoot(), ReadRoot().checkpoint).value().durable, last);
  catalog_->Attach(nullptr);
  const CrashImage image = journal_->ImageAt(journal_->size(), {.kind = CrashOptions::Kind::kProcessKill});
  writer_.reset();
  Restarted restarted = Restart(image);
  const auto devices = restarted.borrowed();
  Root root = FindRoot(devices, std::nullopt).value().value();
  WriterOptions again;
  again.root = root;
  again.root_sequence = root.sequence;
  again.tail = FindDurableTail(devices, root, root.checkpoint).value();
  EXPECT_EQ(again.tail.version.sequence, last);
  again.tail.clean = false;  // so that the log goes on in a new segment
  DeviceSet set(devices);
  auto space = SpaceManager::Create({{kFirst, kCount}}).value();
  for (const Segment& segment : SegmentsOf(root)) ASSERT_OK(space->MarkUsed(segment.run));
  MemoryKvStore index(restarted.journal);
  const auto writer = LogWriter::Start(index, set, *space, again);
  ASSERT_TRUE(writer.has_value());
  for (size_t cut = 0; cut <= restarted.journal->size(); ++cut) {
    Restarted after = Restart(restarted.journal->ImageAt(cut, {.kind = CrashOptions::Kind::kProcessKill}));
    const Root found = FindRoot(after.borrowed(), std::nullopt).value().value();
    if (found.log.segments.size() == root.log.segments.size()) continue;
    EXPECT_GE(found.durable, last) << "a root with a new segment";
  }
  ASSERT_OK((*writer)->Stop());
}

// A crash before the new log is complete finds the old one as it was.
TEST_F(LogWriterTest, AReplacedLogStaysWholeUntilAnotherIsDurable) {
  Start();
  Put(0, 500);
  Stop();
  const KvContent content = OnDevice();
  const Root old = ReadRoot();
  options_.replaced = SegmentsOf(old);
  options_.root.reset();
  options_.root_sequence = old.sequence;
  options_.tail = {.version = ReadVersion(*catalog_).value()};
  space_ = SpaceManager::Create({{kFirst, kCount}}).value();
  for (const Segment& segment : SegmentsOf(old)) ASSERT_OK(space_->MarkUsed(segment.run));
  const size_t begun = journal_->size();
  Start();
  Put(500, 500);
  Stop();
  ExpectRestored();
  size_t before = 0;
  for (size_t cut = begun; cut <= journal_->size(); ++cut) {
    Restarted after = Restart(journal_->ImageAt(cut, {.kind = CrashOptions::Kind::kProcessKill}));
    const auto devices = after.borrowed();
    const Root found = FindRoot(devices, std::nullopt).value().value();
    if (found.sequence > old.sequence) break;
    ++before;
    MemoryKvStore restored(std::make_shared<Journal>());
    const auto apply = [&](const Entry& entry) { return restored.Write(entry.batch); };
    ASSERT_OK(ReplayCheckpoint(devices, found, apply));
    ASSERT_OK(ReplayLog(devices, found, found.checkpoint, UINT64_MAX, apply));
    ASSERT_TRUE(restored.content() == content) << cut;
  }
  EXPECT_GT(before, 4U);
  EXPECT_EQ(space_->total().value - space_->Statistics().free.value,
            BlocksOf(ReadRoot().log.segments).value + BlocksOf(ReadRoot().checkpoint_stream.segments).value)
      << "the old blocks are free";
}

// A checkpoint that takes the last blocks would end all writing.
TEST_F(LogWriterTest, ACheckpointLeavesTheLogItsNextSegment) {
  options_.first_retry = std::chrono::milliseconds(0);
  options_.write_delay = options_.commit_interval = options_.claim_delay = std::chrono::hours(1);
  std::atomic<uint64_t> begun{0};
  Start();
  kv_->AfterNewIterator([&] { ++begun; });
  Put(0, 1);
  SpaceReservation rest;
  TakeSpace(&rest);
  // More than the log knows of, and what the end of the checkpoint has to commit: about a segment of the log.
  const uint64_t reserved = space_->total().value - rest.held().value - writer_->statistics().bytes / kBlockSize;
  KvBatch unknown;
  for (uint64_t i = 0; i < reserved + 20; ++i) unknown.Put("unknown" + std::to_string(i), std::string(kBlockSize, 'x'));
  ASSERT_OK(kv_->Write(std::move(unknown)));
  KvBatch pending;
  pending.Put("pending", std::string(7 * kBlockSize, 'x'));
  ASSERT_OK(catalog_->Write(std::move(pending)));
  const uint64_t before = writer_->statistics().checkpoints;
  writer_->Renew();
  uint64_t released = 0;
  const auto ended = [&] { return writer_->failed() || writer_->statistics().checkpoints > before; };
  for (; !ended(); released += 4) {
    rest.TrimTo(rest.held() - BlockCount{4});
    for (const uint64_t seen = begun; begun < seen + 2 && !ended();) std::this_thread::yield();
  }
  EXPECT_GT(released, 8U) << "the first ones do not fit";
  EXPECT_FALSE(writer_->failed());
  kv_->AfterNewIterator(nullptr);
  Stop();
  ExpectRestored();
}

// Otherwise a program that writes into a pool that is almost full would have all files committed before each write.
TEST_F(LogWriterTest, WhatGrowsIsCommittedAtMostOnceForHalfASegment) {
  constexpr int64_t kHalf = 16 * kKiB - 2 * kBlockSize;
  Start();
  SpaceReservation rest;
  for (uint64_t i = 0; i < 50000 && writer_->CheckSpace(KvChange::kGrow); ++i) {
    space_->AddUncommitted(kHalf);
    EXPECT_TRUE(!writer_->has_space() || writer_->grows_now()) << i;
    space_->AddUncommitted(-kHalf);
    TakeSpace(&rest);
    Put(i, 1);
  }
  EXPECT_FALSE(writer_->has_space());
  Stop();
}

// A pool in which no checkpoint makes space: changes are refused soon, and checkpoints end.
TEST_F(LogWriterTest, AFullPoolRefusesWithoutWaitingForEver) {
  Start();
  Put(0, kRecords);
  SpaceReservation rest;
  for (uint64_t i = 0; i < 20000 && writer_->CheckSpace(KvChange::kGrow); ++i) {
    TakeSpace(&rest);
    Put(kRecords + 10 * i, 10);
  }
  EXPECT_EQ(writer_->CheckSpace(KvChange::kGrow).error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(writer_->CheckSpace(KvChange::kRemove));
  const uint64_t before = writer_->statistics().checkpoints;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(writer_->CheckSpace(KvChange::kGrow).has_value());
  EXPECT_LE(writer_->statistics().checkpoints, before + 1);
  for (uint64_t i = 0; i < kRecords; ++i) {
    KvBatch batch;
    batch.Delete("record" + std::to_string(i));
    ASSERT_OK(catalog_->Write(std::move(batch)));
  }
  ASSERT_OK(catalog_->Sync());
  EXPECT_FALSE(catalog_->failed());
  Stop();
  ExpectRestored();
}

}  // namespace
}  // namespace weightfs::wal
