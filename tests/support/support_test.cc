// SPDX-License-Identifier: Apache-2.0
// Tests the fakes themselves: if a fake kept data that it should lose, every crash test would pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "tests/support/aligned_memory.h"
#include "tests/support/fault_device.h"
#include "tests/support/journal.h"
#include "tests/support/memory_kv_store.h"
#include "tests/support/recording_request.h"
#include "tests/support/restart.h"

namespace weightfs {
namespace {

constexpr ByteCount kDeviceSize{64 * kBlockSize};

ByteOffset Block(uint64_t index) { return {index * kBlockSize}; }

KvBatch Put(std::string key, std::string value) {
  KvBatch batch;
  batch.Put(std::move(key), std::move(value));
  return batch;
}

// The value of all bytes of a block if they are equal; nothing if they differ.
std::optional<char> Fill(const BlockImage& image, uint64_t index) {
  std::vector<std::byte> block(kBlockSize);
  image.Read(Block(index), block);
  for (const auto byte : block) {
    if (byte != block[0]) return std::nullopt;
  }
  return static_cast<char>(block[0]);
}

class SupportTest : public testing::Test {
 protected:
  Result<void> Submit(uint64_t block) {
    AlignedMemory memory(kBlockSize, 'a');
    RecordingRequest request(IoRequest::Operation::kWrite, Block(block), memory.bytes());
    request.SubmitTo(device_);
    return request.Wait();
  }
  void Write(uint64_t block, char fill) {
    const AlignedMemory memory(kBlockSize, fill);
    ASSERT_TRUE(device_.Write(Block(block), memory.bytes()).has_value());
  }
  CrashImage CrashNow(CrashOptions options = {}) { return journal_->ImageAt(journal_->size(), options); }

  std::shared_ptr<Journal> journal_ = std::make_shared<Journal>();
  FaultDevice device_{journal_, kDeviceSize};
  MemoryKvStore kv_{journal_};
};

TEST_F(SupportTest, FlushedWritesSurviveEveryPowerLoss) {
  Write(3, 'a');
  ASSERT_TRUE(device_.Flush().has_value());
  for (uint64_t seed = 0; seed < 50; ++seed) EXPECT_EQ(Fill(CrashNow({.seed = seed}).devices[0], 3), 'a');
}

TEST_F(SupportTest, UnflushedWritesMayBeDroppedKeptOrTorn) {
  Write(3, 'a');
  ASSERT_TRUE(device_.Flush().has_value());
  Write(3, 'b');
  std::set<std::optional<char>> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) seen.insert(Fill(CrashNow({.seed = seed}).devices[0], 3));
  EXPECT_THAT(seen, testing::UnorderedElementsAre('a', 'b', std::nullopt));
  EXPECT_EQ(Fill(CrashNow({.device_survival = 0.0}).devices[0], 3), 'a');
  EXPECT_EQ(Fill(CrashNow({.device_survival = 1.0, .torn = false}).devices[0], 3), 'b');
}

TEST_F(SupportTest, TearsFollowSectors) {
  Write(0, 'b');
  bool torn = false;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    std::vector<std::byte> block(kBlockSize);
    CrashNow({.seed = seed, .device_survival = 1.0}).devices[0].Read(Block(0), block);
    for (size_t at = 0; at < kBlockSize; ++at) EXPECT_EQ(block[at], block[at / 512 * 512]);
    torn = torn || block[0] != block[kBlockSize - 1];
  }
  EXPECT_TRUE(torn);
}

TEST_F(SupportTest, UnflushedWritesSurviveInAnyCombination) {
  Write(0, 'a');
  Write(1, 'b');
  std::set<std::pair<bool, bool>> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto image = CrashNow({.seed = seed, .torn = false});
    seen.insert({Fill(image.devices[0], 0) == 'a', Fill(image.devices[0], 1) == 'b'});
  }
  EXPECT_EQ(seen.size(), 4U);
}

TEST_F(SupportTest, ACutShowsNothingOfWhatCameAfterIt) {
  Write(0, 'a');
  ASSERT_TRUE(device_.Flush().has_value());
  const size_t cut = journal_->size();
  Write(0, 'b');
  ASSERT_TRUE(device_.Flush().has_value());
  ASSERT_TRUE(kv_.Write(Put("k", "v")).has_value());
  ASSERT_TRUE(kv_.Sync().has_value());
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto image = journal_->ImageAt(cut, {.seed = seed});
    EXPECT_EQ(Fill(image.devices[0], 0), 'a');
    EXPECT_TRUE(image.kv.empty());
  }
}

TEST_F(SupportTest, FlushDoesNotCoverWritesInFlight) {
  device_.Hold();
  const AlignedMemory memory(kBlockSize, 'x');
  RecordingRequest request(IoRequest::Operation::kWrite, Block(5), memory.bytes());
  request.SubmitTo(device_);
  ASSERT_TRUE(device_.Flush().has_value());
  EXPECT_EQ(Fill(CrashNow({.device_survival = 0.0}).devices[0], 5), '\0');
  EXPECT_EQ(Fill(CrashNow({.device_survival = 1.0, .torn = false}).devices[0], 5), 'x');
  device_.Release();
  ASSERT_TRUE(request.Wait().has_value());
  EXPECT_EQ(Fill(CrashNow({.device_survival = 0.0}).devices[0], 5), '\0') << "completed, but after the flush";
}

TEST_F(SupportTest, FailedFlushLeavesEarlierWritesInDoubtForEver) {
  Write(0, 'a');
  device_.Fail(FaultDevice::Target::kFlush, {});
  EXPECT_EQ(device_.Flush().error().code, ErrorCode::kIo);
  ASSERT_TRUE(device_.Flush().has_value());
  std::set<std::optional<char>> seen;
  for (uint64_t seed = 0; seed < 100; ++seed) seen.insert(Fill(CrashNow({.seed = seed, .torn = false}).devices[0], 0));
  EXPECT_THAT(seen, testing::UnorderedElementsAre('a', '\0'));
}

TEST_F(SupportTest, ALaterFlushedWriteReplacesAFailedOne) {
  const AlignedMemory memory(kBlockSize, 'a');
  device_.Fail(FaultDevice::Target::kSynchronousWrite, {});
  EXPECT_FALSE(device_.Write(Block(0), memory.bytes()).has_value());
  std::set<std::optional<char>> seen;
  for (uint64_t seed = 0; seed < 100; ++seed) seen.insert(Fill(CrashNow({.seed = seed, .torn = false}).devices[0], 0));
  EXPECT_THAT(seen, testing::UnorderedElementsAre('a', '\0')) << "a failed write may have happened";
  Write(0, 'b');
  ASSERT_TRUE(device_.Flush().has_value());
  for (uint64_t seed = 0; seed < 50; ++seed) EXPECT_EQ(Fill(CrashNow({.seed = seed}).devices[0], 0), 'b');
}

TEST_F(SupportTest, SurvivingBatchesAreAPrefixThatHoldsEverySyncedOne) {
  ASSERT_TRUE(kv_.Write(Put("0", "")).has_value());
  ASSERT_TRUE(kv_.Write(Put("1", "")).has_value());
  ASSERT_TRUE(kv_.Sync().has_value());
  for (const char* key : {"2", "3", "4", "5"}) ASSERT_TRUE(kv_.Write(Put(key, "")).has_value());
  std::set<size_t> sizes;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto image = CrashNow({.seed = seed});
    EXPECT_EQ(image.batches_survived, image.kv.size());
    for (size_t i = 0; i < image.kv.size(); ++i) EXPECT_TRUE(image.kv.contains(std::to_string(i)));
    sizes.insert(image.kv.size());
  }
  EXPECT_THAT(sizes, testing::ElementsAre(2, 3, 4, 5, 6));
}

TEST_F(SupportTest, MetadataMaySurviveWithoutTheDataBeforeIt) {
  Write(0, 'a');
  ASSERT_TRUE(kv_.Write(Put("k", "points to block 0")).has_value());
  ASSERT_TRUE(kv_.Sync().has_value());
  bool found = false;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto image = CrashNow({.seed = seed});
    EXPECT_TRUE(image.kv.contains("k"));
    found = found || Fill(image.devices[0], 0) == '\0';
  }
  EXPECT_TRUE(found);
}

TEST_F(SupportTest, AProcessKillLosesNothingCompleted) {
  Write(0, 'a');
  Write(0, 'b');
  ASSERT_TRUE(kv_.Write(Put("k", "v")).has_value());
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto image = CrashNow({.kind = CrashOptions::Kind::kProcessKill, .seed = seed});
    EXPECT_EQ(Fill(image.devices[0], 0), 'b');
    EXPECT_TRUE(image.kv.contains("k"));
  }
}

TEST_F(SupportTest, TheSameSeedGivesTheSameImage) {
  for (uint64_t block = 0; block < 20; ++block) Write(block, 'a');
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const auto first = CrashNow({.seed = seed});
    const auto second = CrashNow({.seed = seed});
    for (uint64_t block = 0; block < 20; ++block) {
      EXPECT_EQ(Fill(first.devices[0], block), Fill(second.devices[0], block));
    }
  }
}

TEST_F(SupportTest, RestartGivesTheImageAndAJournalOfItsOwn) {
  Write(0, 'a');
  ASSERT_TRUE(device_.Flush().has_value());
  ASSERT_TRUE(kv_.Write(Put("k", "v")).has_value());
  ASSERT_TRUE(kv_.Sync().has_value());
  const Restarted restarted = Restart(CrashNow());
  ASSERT_EQ(restarted.devices.size(), 1U);
  AlignedMemory memory(kBlockSize, 'z');
  ASSERT_TRUE(restarted.devices[0]->Read(Block(0), memory.bytes()).has_value());
  EXPECT_EQ(static_cast<char>(memory.bytes()[0]), 'a');
  EXPECT_EQ(restarted.kv->Get("k").value(), "v");
  EXPECT_EQ(restarted.journal->size(), 0U);
  const auto again = restarted.journal->ImageAt(0);
  EXPECT_EQ(Fill(again.devices[0], 0), 'a');
  EXPECT_TRUE(again.kv.contains("k"));
}

TEST_F(SupportTest, TheNthWriteFailsAndOnlyThatOne) {
  device_.Fail(FaultDevice::Target::kWrite, {.nth = 2});
  device_.Fail(FaultDevice::Target::kSynchronousWrite, {.nth = 1});
  EXPECT_TRUE(Submit(0));
  EXPECT_EQ(Submit(1).error().code, ErrorCode::kIo);
  EXPECT_TRUE(Submit(2));
  const AlignedMemory memory(kBlockSize, 'a');
  EXPECT_EQ(device_.Write(Block(3), memory.bytes()).error().code, ErrorCode::kIo) << "which are counted apart";
  EXPECT_TRUE(device_.Write(Block(3), memory.bytes()).has_value());
}

TEST_F(SupportTest, ReadsFailFromTheNthOn) {
  device_.Fail(FaultDevice::Target::kRead, {.nth = 2, .and_later = true});
  AlignedMemory memory(kBlockSize, 'z');
  EXPECT_TRUE(device_.Read(Block(0), memory.bytes()).has_value());
  EXPECT_FALSE(device_.Read(Block(0), memory.bytes()).has_value());
  EXPECT_FALSE(device_.Read(Block(0), memory.bytes()).has_value());
  device_.StopFailing();
  EXPECT_TRUE(device_.Read(Block(0), memory.bytes()).has_value());
}

TEST_F(SupportTest, WritesPastTheBudgetFail) {
  device_.SetWriteBudget({2 * kBlockSize});
  EXPECT_TRUE(Submit(0));
  EXPECT_TRUE(Submit(1));
  EXPECT_EQ(Submit(2).error().code, ErrorCode::kNoSpace);
}

TEST_F(SupportTest, CorruptionChangesOneByteAndSurvivesRestart) {
  Write(7, 'a');
  ASSERT_TRUE(device_.Flush().has_value());
  device_.Corrupt(Block(7) + ByteCount{100});
  AlignedMemory memory(kBlockSize, 'z');
  ASSERT_TRUE(device_.Read(Block(7), memory.bytes()).has_value());
  EXPECT_EQ(memory.bytes()[100], ~std::byte{'a'});
  EXPECT_EQ(memory.bytes()[99], std::byte{'a'});
  EXPECT_EQ(Fill(CrashNow().devices[0], 7), std::nullopt);
}

TEST_F(SupportTest, HeldRequestsCompleteOnlyAfterRelease) {
  device_.Hold();
  const AlignedMemory memory(kBlockSize, 'a');
  RecordingRequest request(IoRequest::Operation::kWrite, Block(0), memory.bytes());
  request.SubmitTo(device_);
  device_.WaitForHeld(1);
  EXPECT_EQ(request.completions(), 0);
  device_.Release();
  EXPECT_TRUE(request.Wait().has_value());
}

TEST_F(SupportTest, SynchronousReadsAreHeldToo) {
  for (const auto hold : {&FaultDevice::Hold, &FaultDevice::HoldReads}) {
    (device_.*hold)();
    AlignedMemory memory(kBlockSize, 'a');
    std::atomic<bool> returned = false;
    std::thread reader([&] {
      EXPECT_TRUE(device_.Read(Block(0), memory.bytes()).has_value());
      returned = true;
    });
    device_.WaitForHeld(1);
    EXPECT_FALSE(returned);
    device_.Release();
    reader.join();
  }
}

TEST(FaultDeviceTest, ReorderingCompletesInAnotherOrderThanSubmission) {
  auto journal = std::make_shared<Journal>();
  FaultDevice device(journal, kDeviceSize, {.reorder = true, .seed = 3});
  device.Hold();
  const AlignedMemory memory(kBlockSize, 'a');
  std::vector<std::unique_ptr<RecordingRequest>> requests;
  for (uint64_t block = 0; block < 16; ++block) {
    requests.push_back(std::make_unique<RecordingRequest>(IoRequest::Operation::kWrite, Block(block), memory.bytes()));
    requests.back()->SubmitTo(device);
  }
  device.Release();
  for (auto& request : requests) ASSERT_TRUE(request->Wait().has_value());
  std::vector<size_t> order;
  for (const auto& event : journal->events()) {
    if (event.kind == Journal::Event::Kind::kWriteDone) order.push_back(event.subject);
  }
  ASSERT_EQ(order.size(), 16U);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

TEST(FaultDeviceTest, DestructionCompletesWhatIsHeld) {
  auto journal = std::make_shared<Journal>();
  const AlignedMemory memory(kBlockSize, 'a');
  RecordingRequest request(IoRequest::Operation::kWrite, Block(0), memory.bytes());
  {
    FaultDevice device(journal, kDeviceSize);
    device.Hold();
    request.SubmitTo(device);
  }
  EXPECT_EQ(request.completions(), 1);
}

TEST_F(SupportTest, IteratorsWalkASnapshotOfThePrefix) {
  for (const char* key : {"a", "b1", "b2", "b3", "c"}) ASSERT_TRUE(kv_.Write(Put(key, key)).has_value());
  const auto iterator = kv_.NewIterator("b");
  KvBatch batch;
  batch.DeleteRange("b1", "b3");
  batch.Put("b9", "new");
  ASSERT_TRUE(kv_.Write(batch).has_value());
  std::vector<std::string> keys;
  for (; iterator->Valid(); iterator->Next()) keys.emplace_back(iterator->key());
  EXPECT_TRUE(iterator->status().has_value());
  EXPECT_THAT(keys, testing::ElementsAre("b1", "b2", "b3"));
  iterator->Seek("b2");
  ASSERT_TRUE(iterator->Valid());
  EXPECT_EQ(iterator->value(), "b2");
  iterator->Seek("bz");
  EXPECT_FALSE(iterator->Valid());
  EXPECT_FALSE(kv_.Get("b1").value().has_value());
  EXPECT_EQ(kv_.Get("b3").value(), "b3");
}

TEST_F(SupportTest, AFailedIteratorIsNotTheEnd) {
  for (const char* key : {"a", "b", "c"}) ASSERT_TRUE(kv_.Write(Put(key, "")).has_value());
  kv_.FailIterator(1, 2);
  const auto iterator = kv_.NewIterator("");
  size_t keys = 0;
  for (; iterator->Valid(); iterator->Next()) ++keys;
  EXPECT_EQ(keys, 2U);
  EXPECT_EQ(iterator->status().error().code, ErrorCode::kIo);
}

TEST_F(SupportTest, AFailedBatchIsInvisibleMayBeRecoveredAndEndsWriting) {
  kv_.FailWrite(2);
  ASSERT_TRUE(kv_.Write(Put("a", "")).has_value());
  EXPECT_EQ(kv_.Write(Put("b", "")).error().code, ErrorCode::kIo);
  EXPECT_FALSE(kv_.Get("b").value().has_value());
  EXPECT_EQ(kv_.Write(Put("c", "")).error().code, ErrorCode::kReadOnly);
  EXPECT_EQ(kv_.Sync().error().code, ErrorCode::kReadOnly);
  EXPECT_FALSE(CrashNow({.kv_survival = 0.0}).kv.contains("b"));
  EXPECT_TRUE(CrashNow({.kv_survival = 1.0}).kv.contains("b"));
}

TEST_F(SupportTest, AFailedSyncMakesTheStoreReadOnlyAndNothingDurable) {
  ASSERT_TRUE(kv_.Write(Put("a", "")).has_value());
  kv_.FailSync(1);
  EXPECT_EQ(kv_.Sync().error().code, ErrorCode::kIo);
  EXPECT_EQ(kv_.Write(Put("b", "")).error().code, ErrorCode::kReadOnly);
  EXPECT_TRUE(kv_.failed());
  EXPECT_TRUE(CrashNow({.kv_survival = 0.0}).kv.empty());
}

}  // namespace
}  // namespace weightfs
