// SPDX-License-Identifier: Apache-2.0
// A log on a device in memory, whose roots and reads can fail.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "engine/superblock.h"
#include "io/huge_pages.h"
#include "store/wal/log_writer.h"
#include "store/wal/logged_kv_store.h"
#include "store/wal/wal_reader.h"
#include "tests/support/fault_device.h"
#include "tests/support/memory_kv_store.h"
#include "tests/support/restart.h"
#include "tests/support/result_asserts.h"

namespace weightfs::wal {

inline constexpr ByteCount kDevice{64 * kMiB};
inline constexpr uint64_t kRecords = 4000;

// Passes everything to another device. Can fail the writes of roots, which it counts, and the reads of one block.
class RootDevice final : public BlockDevice {
 public:
  explicit RootDevice(BlockDevice& base) : base_(base) {}

  ByteCount size() const override { return base_.size(); }
  std::string_view path() const override { return base_.path(); }
  Result<void> Flush() override { return base_.Flush(); }
  void Submit(std::span<IoRequest* const> requests) override {
    for (IoRequest* request : requests) {
      const bool write = request->operation == IoRequest::Operation::kWrite;
      const bool root = write && request->offset.value < kDataOffset;
      if (write && !root && during_frame_) std::exchange(during_frame_, {})();
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
  // Runs once, before the next frame is written. Call it while nothing is written.
  void DuringFrame(std::function<void()> action) { during_frame_ = std::move(action); }
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
  std::function<void()> during_frame_;
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
      if (auto root = wal::ReadRoot(device_, offset, {memory.data(), memory.size()}).value()) roots.push_back(*root);
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
    space_ = SpaceManager::Create({{kFirst, kCount}}).value();
    if (fragmented) FragmentFreeSpace();
    for (const Segment& segment : SegmentsOf(root)) ASSERT_OK(space_->MarkUsed(segment.run));
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

  // Where the frame behind the tail begins.
  static ByteOffset EndOf(const Root& root, const Tail& tail) {
    return ToBytes(root.log.segments[tail.position.segment].run.run.start + tail.position.block);
  }
  // Takes all free space, also of single blocks.
  void TakeSpace(SpaceReservation* taken) {
    for (uint64_t count = kCount.value; count > 0; count /= 2) {
      while (space_->Reserve(taken, BlockCount{count})) {
      }
    }
  }

  BlockCount MostThatFits() {
    BlockCount most = space_->Statistics().free;
    while (!space_->WouldFit(most, {}, false)) --most.value;
    return most;
  }
  std::vector<DeviceRun> Allocate(BlockCount count) {
    SpaceReservation reservation;
    EXPECT_TRUE(space_->Reserve(&reservation, count).has_value());
    return space_->Allocate({.ino = InodeId{1}, .first = {}, .count = count}, &reservation).value();
  }

  static constexpr DeviceBlock kFirst{kDataOffset / kBlockSize};
  static constexpr BlockCount kCount{kDevice.value / kBlockSize - kFirst.value};
  const std::shared_ptr<Journal> journal_ = std::make_shared<Journal>();
  FaultDevice base_{journal_, kDevice};
  RootDevice device_{base_};
  const std::vector<BlockDevice*> given_ = {&device_};
  DeviceSet devices_{given_};
  std::unique_ptr<SpaceManager> space_ = SpaceManager::Create({{kFirst, kCount}}).value();
  MemoryKvStore* kv_;
  std::unique_ptr<LoggedKvStore> catalog_;
  WriterOptions options_;
  std::unique_ptr<LogWriter> writer_;
};

}  // namespace weightfs::wal
