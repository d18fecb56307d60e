// SPDX-License-Identifier: Apache-2.0
// What the log has when, and where it ends.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "tests/support/thread_state.h"
#include "tests/unit/store/wal/log_writer_rig.h"

namespace weightfs::wal {
namespace {

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

TEST_F(LogWriterTest, ChangesAreWrittenSoonWhileTheTimerWaitsForAMark) {
  options_.commit_interval = options_.claim_delay = std::chrono::hours(1);
  Start();
  Put(0, 1);
  ASSERT_OK(catalog_->Sync());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  KvBatch batch;
  batch.Put("a", "1");
  ASSERT_OK(catalog_->Write(std::move(batch)));
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!OnDevice().contains("a") && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  EXPECT_TRUE(OnDevice().contains("a"));
  Stop();
}

TEST_F(LogWriterTest, ARootHasTheDescriptionOfTheLastMount) {
  options_.description = "one path";
  Start();
  Put(0, 1);
  Stop();
  options_.description = "another path";
  Reopen(/*fragmented=*/false);
  EXPECT_EQ(ReadRoot().description, "another path");
  Stop();
  options_.description = std::string(kRootCapacity, ' ');
  Reopen(/*fragmented=*/false);
  EXPECT_EQ(ReadRoot().description, "another path") << "no root has space for that one";
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

TEST_F(LogWriterTest, AFullFilesystemOfTheIndexDelaysNoCheckpoint) {
  Start();
  Put(0, 100);
  kv_->Fill(true);
  const uint64_t before = writer_->statistics().checkpoints;
  writer_->Renew();
  while (writer_->statistics().checkpoints == before) std::this_thread::yield();
  EXPECT_EQ(ReadRoot().checkpoint.sequence, 100U);
  Stop();
  ExpectRestored();
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

// Also what it stores during the last commit.
TEST_F(LogWriterTest, TheEndOfTheLogMakesEntriesDurableBeforeTheIndexStoresThem) {
  options_.commit_interval = options_.write_delay = std::chrono::hours(1);
  Start();
  KvBatch batch;
  batch.Put("a", "1");
  ASSERT_OK(catalog_->Write(std::move(batch)));
  std::thread index;
  size_t stored = 0;
  device_.DuringFrame([&] {
    std::promise<pid_t> started;
    auto thread = started.get_future();
    index = std::thread([this, &stored, started = std::move(started)]() mutable {
      started.set_value(gettid());
      options_.gate->Commit();
      stored = journal_->size();
    });
    WaitUntilAsleep(thread.get());
  });
  ASSERT_OK(writer_->Stop());
  index.join();
  Restarted restarted = Restart(journal_->ImageAt(stored, {.device_survival = 0.0}));
  const auto devices = restarted.borrowed();
  const Root root = FindRoot(devices, std::nullopt).value().value();
  EXPECT_EQ(FindTail(devices, root, root.checkpoint).value().version, ReadVersion(*catalog_).value());
}

// An index that has the entries before the damage may lack later ones that were durable, too.
TEST_F(LogWriterTest, AMarkBehindDamageShowsWhatIsMissing) {
  Start();
  Put(0, 1);
  const Root root = ReadRoot();
  const Tail tail = FindTail(given_, root, root.checkpoint).value();
  const ByteOffset next = EndOf(root, tail);
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
  const ByteOffset next = EndOf(first, tail);
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

TEST_F(LogWriterTest, AnUnreadableBlockBehindTheLogIsNoEnd) {
  Start();
  Put(0, 10);
  const Tail tail = FindTail(given_, ReadRoot(), ReadRoot().checkpoint).value();
  EXPECT_FALSE(tail.unreadable);
  device_.FailReadsOf(EndOf(ReadRoot(), tail));
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
  space_ = SpaceManager::Create({{kFirst, kCount}}).value();
  for (const Segment& segment : SegmentsOf(root)) ASSERT_OK(space_->MarkUsed(segment.run));
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

// Runs an action when an iterator is destroyed: RocksDB deletes files then.
class HookedIterators final : public KvStoreWrapper {
 public:
  using KvStoreWrapper::KvStoreWrapper;
  std::unique_ptr<KvIterator> NewIterator(std::string_view prefix, std::string_view first, KvScan scan) override {
    return std::make_unique<Iterator>(KvStoreWrapper::NewIterator(prefix, first, scan), on_end_);
  }
  void OnEnd(std::function<void()> action) { on_end_ = std::move(action); }

 private:
  class Iterator final : public KvIterator {
   public:
    Iterator(std::unique_ptr<KvIterator> base, const std::function<void()>& on_end)
        : base_(std::move(base)), on_end_(on_end) {}
    ~Iterator() override {
      if (on_end_) on_end_();
    }
    bool Valid() const override { return base_->Valid(); }
    void Next() override { base_->Next(); }
    void Seek(std::string_view key) override { base_->Seek(key); }
    std::string_view key() const override { return base_->key(); }
    std::string_view value() const override { return base_->value(); }
    Result<void> status() const override { return base_->status(); }

   private:
    const std::unique_ptr<KvIterator> base_;
    const std::function<void()>& on_end_;
  };
  std::function<void()> on_end_;
};

TEST_F(LogWriterTest, NoCommitWaitsForTheIndexToDropASnapshot) {
  auto kv = std::make_unique<MemoryKvStore>(journal_);
  kv_ = kv.get();
  auto hooked = std::make_unique<HookedIterators>(std::move(kv));
  HookedIterators& index = *hooked;
  catalog_ = std::make_unique<LoggedKvStore>(std::move(hooked), Version{});
  Start();
  std::atomic<int> ended{0}, committed{0};
  index.OnEnd([&] {
    auto commit = std::async(std::launch::async, [&] { return writer_->Commit().has_value(); });
    if (commit.wait_for(std::chrono::seconds(30)) == std::future_status::ready && commit.get()) ++committed;
    ++ended;
  });
  const uint64_t before = writer_->statistics().checkpoints;
  writer_->Renew();
  while (writer_->statistics().checkpoints == before || ended == 0) std::this_thread::yield();
  Stop();
  EXPECT_EQ(committed, 1);
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
