// SPDX-License-Identifier: Apache-2.0
// The log and its space: in small pieces, after failed writes of its roots, and what a mark allows.
#include "store/wal/log_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "engine/superblock.h"
#include "io/huge_pages.h"
#include "store/wal/log_recovery.h"
#include "store/wal/logged_kv_store.h"
#include "tests/support/fault_device.h"
#include "tests/support/memory_kv_store.h"
#include "tests/support/restart.h"
#include "tests/support/result_asserts.h"

namespace weightfs::wal {
namespace {

constexpr ByteCount kDevice{64 * kMiB};
constexpr uint64_t kRecords = 4000;

// Passes everything to another device. Can fail the writes of roots, which it counts, and the reads of one block.
class RootDevice final : public BlockDevice {
 public:
  explicit RootDevice(BlockDevice& base) : base_(base) {}

  ByteCount size() const override { return base_.size(); }
  std::string_view path() const override { return base_.path(); }
  Result<void> Flush() override { return base_.Flush(); }
  void Submit(std::span<IoRequest* const> requests) override {
    for (IoRequest* request : requests) {
      const bool root = request->operation == IoRequest::Operation::kWrite && request->offset.value < kDataOffset;
      if ((root && CountsAndFails()) || (request->operation == IoRequest::Operation::kRead && IsUnreadable(*request))) {
        request->OnComplete(ErrorCode::kIo);
      } else {
        base_.Submit({&request, 1});
      }
    }
  }

  void Fail(bool fails) {
    MutexLock lock(mutex_);
    fails_ = fails;
  }
  void FailReadsOf(ByteOffset block) { unreadable_ = block.value; }
  uint64_t roots() {
    MutexLock lock(mutex_);
    return roots_;
  }
  void WaitForRoots(uint64_t count) {
    MutexLock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock.native(), std::chrono::minutes(1), [&] { return roots_ >= count; }));
  }

 private:
  bool CountsAndFails() {
    MutexLock lock(mutex_);
    ++roots_;
    changed_.notify_all();
    return fails_;
  }

  bool IsUnreadable(const IoRequest& request) const {
    return request.offset.value <= unreadable_ && unreadable_ < request.offset.value + request.size.value;
  }

  BlockDevice& base_;
  std::atomic<uint64_t> unreadable_{UINT64_MAX};
  Mutex mutex_;
  std::condition_variable changed_;
  uint64_t roots_ GUARDED_BY(mutex_) = 0;
  bool fails_ GUARDED_BY(mutex_) = false;
};

class LogWriterTest : public ::testing::Test {
 protected:
  LogWriterTest() {
    auto kv = std::make_unique<MemoryKvStore>(journal_);
    kv_ = kv.get();
    catalog_ = std::make_unique<LoggedKvStore>(std::move(kv), Version{});
    options_.first_retry = std::chrono::milliseconds(1);
  }

  // Leaves free blocks only between used ones.
  void FragmentFreeSpace() {
    for (uint64_t block = kFirst.value; block < kFirst.value + kCount.value; block += 2) {
      ASSERT_OK(space_->MarkUsed({DeviceId{0}, {DeviceBlock{block}, BlockCount{1}}}));
    }
  }
  void Start() {
    auto started = LogWriter::Start(catalog_->index(), devices_, *space_, options_);
    ASSERT_TRUE(started.has_value()) << ToString(started.error());
    writer_ = std::move(*started);
    catalog_->Attach(writer_.get());
  }
  void Stop() {
    ASSERT_OK(writer_->Stop());
    catalog_->Attach(nullptr);
    writer_.reset();
  }
  void Put(uint64_t first, uint64_t count) {
    for (uint64_t i = first; i < first + count; ++i) {
      KvBatch batch;
      batch.Put("record" + std::to_string(i), std::string(100, static_cast<char>(i)));
      ASSERT_OK(catalog_->Write(std::move(batch)));
    }
    ASSERT_OK(catalog_->Sync());
  }
  // The root on the device, with its segments.
  Root ReadRoot() {
    auto root = FindRoot(given_, std::nullopt).value().value();
    EXPECT_TRUE(LoadSegments(given_, &root).has_value());
    return root;
  }
  // The valid roots on the device, of all sequences.
  std::vector<Root> Roots() {
    std::vector<Root> roots;
    const HugePageMemory memory = HugePageMemory::Map(kRootCapacity).value();
    for (const uint64_t offset : kRootOffsets) {
      if (auto root = wal::ReadRoot(device_, offset, {memory.data(), memory.size()})) roots.push_back(*root);
    }
    return roots;
  }
  // Prepares the next writer as a mount does.
  void Reopen(bool fragmented = true) {
    const Root root = ReadRoot();
    options_.root = root;
    options_.root_sequence = root.sequence;
    options_.tail = FindDurableTail(given_, root, ReadVersion(*catalog_).value()).value();
    ASSERT_TRUE(options_.tail.continues);
    space_ = SpaceManager::Create({{{kFirst, kCount}}}).value();
    if (fragmented) FragmentFreeSpace();
    for (const Stream* stream : StreamsOf(root)) {
      for (const Segment& segment : stream->segments) ASSERT_OK(space_->MarkUsed(segment.run));
    }
    Start();
  }
  // The records that the log on the device has.
  KvContent OnDevice() {
    const Root root = ReadRoot();
    MemoryKvStore restored(std::make_shared<Journal>());
    const auto apply = [&](const Entry& entry) { return restored.Write(entry.batch); };
    EXPECT_TRUE(ReplayCheckpoint(given_, root, apply).has_value());
    EXPECT_TRUE(ReplayLog(given_, root, root.checkpoint, UINT64_MAX, apply).has_value());
    return restored.content();
  }
  void ExpectRestored() {
    KvContent expected = kv_->content();
    expected.erase(std::string("S") + kVersionFact);
    const KvContent found = OnDevice();
    EXPECT_TRUE(found == expected) << "the device has " << found.size() << " of " << expected.size() << " records";
  }

  static constexpr DeviceBlock kFirst{kDataOffset / kBlockSize};
  static constexpr BlockCount kCount{kDevice.value / kBlockSize - kFirst.value};
  const std::shared_ptr<Journal> journal_ = std::make_shared<Journal>();
  FaultDevice base_{journal_, kDevice};
  RootDevice device_{base_};
  const std::vector<BlockDevice*> given_ = {&device_};
  DeviceSet devices_{given_};
  std::unique_ptr<SpaceManager> space_ = SpaceManager::Create({{{kFirst, kCount}}}).value();
  MemoryKvStore* kv_;
  std::unique_ptr<LoggedKvStore> catalog_;
  WriterOptions options_;
  std::unique_ptr<LogWriter> writer_;
};

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

TEST_F(LogWriterTest, ARenewalEndsBeforeTheUnmount) {
  Start();
  Put(0, 100);
  Stop();
  for (int round = 0; round < 20; ++round) {
    const Root before = ReadRoot();
    Reopen(/*fragmented=*/false);
    writer_->Renew();
    Stop();
    EXPECT_NE(ReadRoot().checkpoint_stream.id, before.checkpoint_stream.id) << round;
  }
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

TEST_F(LogWriterTest, ChangesAreWrittenSoonAndDurableAfterTheInterval) {
  options_.commit_interval = std::chrono::milliseconds(200);
  Start();
  KvBatch batch;
  batch.Put("a", "1");
  ASSERT_OK(catalog_->Write(std::move(batch)));
  EXPECT_GT(writer_->age().count(), 0);
  while (!OnDevice().contains("a")) std::this_thread::yield();
  const auto survives = [&] {
    const CrashImage image = journal_->ImageAt(journal_->size(), {.device_survival = 0.0});
    Restarted restarted = Restart(image);
    const auto devices = restarted.borrowed();
    const Root root = FindRoot(devices, std::nullopt).value().value();
    return FindTail(devices, root, root.checkpoint).value().version.sequence > root.checkpoint.sequence;
  };
  while (!survives()) std::this_thread::yield();
  while (writer_->age().count() > 0) std::this_thread::yield();
  Stop();
}

TEST_F(LogWriterTest, FreedBlocksAreUsedAgainOnlyBehindADurableMark) {
  options_.claim_delay = std::chrono::hours(1);
  Start();
  Put(0, 1);
  BlockCount free = space_->Statistics().free;
  while (!space_->WouldFit(free, {}, false)) --free.value;
  SpaceReservation reservation;
  ASSERT_OK(space_->Reserve(&reservation, BlockCount{8}));
  const auto runs = space_->Allocate({.ino = InodeId{1}, .first = {}, .count = BlockCount{8}}, &reservation).value();
  Put(1, 1);
  writer_->Retire(runs);
  EXPECT_FALSE(space_->WouldFit(free, {}, false));
  Put(2, 1);  // a frame with a mark of the entry that freed the blocks, and its flush
  EXPECT_TRUE(space_->WouldFit(free, {}, false));
  Stop();
}

// A filesystem of the index that is slow, or hangs, delays only checkpoints.
TEST_F(LogWriterTest, TheTimesAreKeptDuringACheckpoint) {
  options_.commit_interval = std::chrono::milliseconds(100);
  Start();
  Put(0, 1);
  std::promise<bool> kept;
  kv_->DuringSync([&] {
    KvBatch batch;
    batch.Put("a", "1");
    bool written = catalog_->Write(std::move(batch)).has_value();
    while (writer_->age().count() > 0) std::this_thread::yield();
    kept.set_value(written && OnDevice().contains("a"));
  });
  writer_->Renew();
  EXPECT_TRUE(kept.get_future().get());
  Stop();
}

TEST_F(LogWriterTest, AnIndexThatStoresEntriesMakesThemDurableFirst) {
  options_.commit_interval = options_.write_delay = std::chrono::hours(1);
  Start();
  KvBatch batch;
  batch.Put("a", "1");
  ASSERT_OK(catalog_->Write(std::move(batch)));
  EXPECT_FALSE(OnDevice().contains("a"));
  options_.gate->Commit();
  EXPECT_TRUE(OnDevice().contains("a"));
  EXPECT_EQ(writer_->age().count(), 0);
  Stop();
  options_.gate->Commit();  // without a log it does nothing
}

// A large entry is refused before anything has changed, and others go on.
TEST_F(LogWriterTest, AnEntryThatDoesNotFitIsRefused) {
  Start();
  Put(0, 100);
  SpaceReservation rest;
  for (uint64_t count = kCount.value; count > 0; count /= 2) {
    while (space_->Reserve(&rest, BlockCount{count})) {
    }
  }
  KvBatch batch;
  for (int i = 0; i < 40; ++i) batch.Put("large" + std::to_string(i), std::string(kMiB, 'x'));
  EXPECT_EQ(catalog_->Write(std::move(batch)).error().code, ErrorCode::kNoSpace);
  EXPECT_FALSE(catalog_->failed());
  EXPECT_FALSE(kv_->content().contains("large0"));
  Put(100, 100);
  Stop();
  ExpectRestored();
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
  auto space = SpaceManager::Create({{{kFirst, kCount}}}).value();
  for (const Stream* stream : StreamsOf(root)) {
    for (const Segment& segment : stream->segments) ASSERT_OK(space->MarkUsed(segment.run));
  }
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
  options_.replaced = old;
  options_.root.reset();
  options_.root_sequence = old.sequence;
  options_.tail = {.version = ReadVersion(*catalog_).value()};
  space_ = SpaceManager::Create({{{kFirst, kCount}}}).value();
  for (const Stream* stream : StreamsOf(old)) {
    for (const Segment& segment : stream->segments) ASSERT_OK(space_->MarkUsed(segment.run));
  }
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
  EXPECT_GT(before, 5U);
  EXPECT_EQ(space_->total().value - space_->Statistics().free.value,
            BlocksOf(ReadRoot().log.segments).value + BlocksOf(ReadRoot().checkpoint_stream.segments).value)
      << "the old blocks are free";
}

// An index that has the entries before the damage may lack later ones that were durable, too.
TEST_F(LogWriterTest, AMarkBehindDamageShowsWhatIsMissing) {
  Start();
  Put(0, 1);
  const Root root = ReadRoot();
  const Tail tail = FindTail(given_, root, root.checkpoint).value();
  const ByteOffset next = ToBytes(root.log.segments[tail.position.segment].run.run.start + tail.position.block);
  Put(1, 1);
  Put(2, 1);
  Put(3, 1);  // with a mark of the one before
  const uint64_t last = ReadVersion(*catalog_).value().sequence;
  base_.Corrupt(next);
  const Tail damaged = FindTail(given_, ReadRoot(), root.checkpoint).value();
  EXPECT_TRUE(damaged.damaged);
  EXPECT_EQ(damaged.version, tail.version);
  EXPECT_EQ(damaged.durable, last - 1);
  Stop();
}

// Of the last segment the log keeps all, so damage may lie before what it still needs.
TEST_F(LogWriterTest, DamageBeforeWhatAVersionNeedsIsSkipped) {
  Start();
  Put(0, 1);
  const Root first = ReadRoot();
  const Tail tail = FindTail(given_, first, first.checkpoint).value();
  const ByteOffset next = ToBytes(first.log.segments[tail.position.segment].run.run.start + tail.position.block);
  for (uint64_t i = 1; i < 6; ++i) Put(i, 1);
  const Version middle = ReadVersion(*catalog_).value();
  for (uint64_t i = 6; i < 10; ++i) Put(i, 1);
  base_.Corrupt(next);
  const Tail found = FindTail(given_, ReadRoot(), middle).value();
  EXPECT_TRUE(found.continues && found.clean);
  EXPECT_FALSE(found.damaged);
  EXPECT_EQ(found.version, ReadVersion(*catalog_).value());
  // Behind the version of the checkpoint it is damage, and the log ends before it.
  const Tail damaged = FindTail(given_, ReadRoot(), first.checkpoint).value();
  EXPECT_TRUE(damaged.damaged);
  EXPECT_EQ(damaged.version, tail.version);
  // A renewal leaves it behind.
  const uint64_t before = writer_->statistics().checkpoints;
  writer_->Renew();
  while (writer_->statistics().checkpoints == before) std::this_thread::yield();
  Put(10, 10);
  const Root renewed = ReadRoot();
  EXPECT_FALSE(FindTail(given_, renewed, renewed.checkpoint).value().damaged);
  Stop();
  ExpectRestored();
}

// A search from the version of the index and one from the checkpoint find the same end, at every cut of a large entry.
TEST_F(LogWriterTest, APartOfAnEntryIsNoCleanEnd) {
  Start();
  Put(0, 10);
  const Version before = ReadVersion(*catalog_).value();
  const size_t begun = journal_->size();
  KvBatch batch;
  for (int i = 0; i < 60; ++i) batch.Put("large" + std::to_string(i), std::string(1000, 'x'));
  ASSERT_OK(catalog_->Write(std::move(batch)));
  ASSERT_OK(catalog_->Sync());
  size_t parts = 0;
  for (size_t cut = begun; cut <= journal_->size(); ++cut) {
    Restarted after = Restart(journal_->ImageAt(cut, {.kind = CrashOptions::Kind::kProcessKill}));
    const auto devices = after.borrowed();
    const Root root = FindRoot(devices, std::nullopt).value().value();
    const Tail near = FindTail(devices, root, before).value();
    const Tail far = FindTail(devices, root, root.checkpoint).value();
    EXPECT_EQ(near.version, far.version) << cut;
    EXPECT_EQ(near.clean, far.clean) << cut;
    EXPECT_TRUE(near.continues) << cut;
    if (!near.clean) ++parts;
  }
  EXPECT_GT(parts, 0U);
  Stop();
}

TEST_F(LogWriterTest, EachRenewalTakesOneCheckpoint) {
  Start();
  Put(0, 100);
  const uint64_t before = writer_->statistics().checkpoints;
  std::promise<void> during;
  kv_->DuringSync([&] {
    writer_->Renew();  // arrives during another
    during.set_value();
  });
  writer_->Renew();
  during.get_future().wait();
  while (writer_->statistics().checkpoints < before + 2) std::this_thread::yield();
  Put(100, 10);
  EXPECT_TRUE(writer_->statistics().intact);
  EXPECT_EQ(writer_->statistics().checkpoints, before + 2);
  Stop();
}

// A pool in which no checkpoint makes space: changes are refused soon, and checkpoints end.
TEST_F(LogWriterTest, AFullPoolRefusesWithoutWaitingForEver) {
  Start();
  Put(0, kRecords);
  SpaceReservation rest;
  const auto fill = [&] {
    for (uint64_t count = kCount.value; count > 0; count /= 2) {
      while (space_->Reserve(&rest, BlockCount{count})) {
      }
    }
  };
  for (uint64_t i = 0; i < 20000 && writer_->CheckSpace(KvChange::kGrow); ++i) {
    fill();
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

TEST_F(LogWriterTest, AnUnreadableBlockBehindTheLogIsNoEnd) {
  Start();
  Put(0, 10);
  const Tail tail = FindTail(given_, ReadRoot(), ReadRoot().checkpoint).value();
  EXPECT_FALSE(tail.unreadable);
  const DeviceRun run = ReadRoot().log.segments[tail.position.segment].run;
  device_.FailReadsOf(ToBytes(run.run.start + tail.position.block));
  EXPECT_TRUE(FindTail(given_, ReadRoot(), ReadRoot().checkpoint).value().unreadable);
  Stop();
}

TEST_F(LogWriterTest, ACleanEndNeedsNoCheckOfData) {
  Start();
  Put(0, 10);
  Stop();
  const Root root = ReadRoot();
  const Tail tail = FindTail(given_, root, root.checkpoint).value();
  EXPECT_EQ(tail.durable, tail.version.sequence);
  EXPECT_TRUE(tail.clean);
  EXPECT_FALSE(tail.damaged);
}

TEST_F(LogWriterTest, AfterACutTheLogGoesOnBehindItsLastEntry) {
  Start();
  Put(0, 10);
  Stop();
  const Version before = ReadVersion(*catalog_).value();
  Reopen(/*fragmented=*/false);
  Put(10, 5);
  Stop();
  // The mount decides that the last five entries do not count.
  auto kv = std::make_unique<MemoryKvStore>(journal_, [&] {
    KvContent content = kv_->content();
    for (int i = 10; i < 15; ++i) content.erase("record" + std::to_string(i));
    content[std::string("S") + kVersionFact] = EncodeVersion(before);
    return content;
  }());
  kv_ = kv.get();
  catalog_ = std::make_unique<LoggedKvStore>(std::move(kv), before);
  const Root root = ReadRoot();
  options_.root = root;
  options_.root_sequence = root.sequence;
  options_.tail = FindTail(given_, root, before).value();
  options_.tail.version = before;
  options_.tail.clean = false;
  space_ = SpaceManager::Create({{{kFirst, kCount}}}).value();
  for (const Stream* stream : StreamsOf(root)) {
    for (const Segment& segment : stream->segments) ASSERT_OK(space_->MarkUsed(segment.run));
  }
  Start();
  ExpectRestored();
  Put(20, 5);
  Stop();
  ExpectRestored();
  Reopen(/*fragmented=*/false);
  Put(30, 5);
  Stop();
  ExpectRestored();
}

TEST_F(LogWriterTest, SteadyCommitsDoNotKeepACheckpointFromItsEnd) {
  Start();
  while (writer_->statistics().checkpoints < 3) Put(0, 50);
  Stop();
  ExpectRestored();
}

class FailingLogTest : public LogWriterTest, public ::testing::WithParamInterface<FaultDevice::Target> {};

TEST_P(FailingLogTest, EndsAllWriting) {
  Start();
  Put(0, 1);
  base_.Fail(GetParam(), {.nth = 1});
  KvBatch batch;
  batch.Put("lost", "x");
  ASSERT_OK(catalog_->Write(std::move(batch)));
  EXPECT_EQ(catalog_->Sync().error().code, ErrorCode::kIo);
  EXPECT_TRUE(catalog_->failed());
  KvBatch later;
  later.Put("later", "x");
  EXPECT_EQ(catalog_->Write(std::move(later)).error().code, ErrorCode::kReadOnly);
  EXPECT_FALSE(writer_->Stop().has_value());
}

INSTANTIATE_TEST_SUITE_P(Targets, FailingLogTest,
                         ::testing::Values(FaultDevice::Target::kWrite, FaultDevice::Target::kFlush));

}  // namespace
}  // namespace weightfs::wal
