// SPDX-License-Identifier: Apache-2.0
// Keeps the replica of the catalog on the devices current, behind the catalog: only batches that the catalog has on
// stable storage are written. So a catalog that is older than its replica has lost something.
//
// The replica is a checkpoint of all records and a log of the batches since. When the log outgrows the checkpoint, a
// new checkpoint is written beside the old one, and the root then refers to the new one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "engine/device_set.h"
#include "io/huge_pages.h"
#include "store/replica/mirrored_kv_store.h"
#include "store/replica/replica_options.h"
#include "store/replica/stream_writer.h"
#include "store/space/space_manager.h"
#include "store/types.h"

namespace weightfs::replica {

// The maximum time from the sync of a batch in the catalog until it is on stable storage in the replica, as long as the
// devices keep up and have free space.
inline constexpr std::chrono::milliseconds kFlushInterval{1000};  // half of it until the write, half until the flush

// Changes of names start no commit of data, so this thread also syncs the catalog when nobody else has done so within
// the commit interval.
//
// Thread-safe. One thread writes. Space comes from `space`; when there is none, or a device fails, the replica falls
// behind, which is logged, and the store goes on.
class ReplicaWriter final : public EntrySink {
 public:
  // Flushes the devices written since their last flush (Committer::FlushDevices).
  using Flush = std::function<Result<void>()>;
  ReplicaWriter(MirroredKvStore& catalog, DeviceSet& devices, SpaceManager& space, Flush flush, WriterOptions options);
  ~ReplicaWriter() override;

  void Append(std::string entry, Version version) override EXCLUDES(mutex_);
  void NoteDurable(uint64_t sequence) override EXCLUDES(mutex_);

  // Writes a new checkpoint soon, because the one on the devices is damaged.
  void Renew() EXCLUDES(mutex_);

  // Writes everything that is durable, completes a checkpoint without which the replica is not current, and stops the
  // thread. The caller flushes the devices afterwards.
  void Stop() EXCLUDES(mutex_);
  ReplicaStatistics statistics() const EXCLUDES(mutex_);
  // Since the replica had every durable batch, or since the mount; 0: it has all.
  std::chrono::nanoseconds age() const EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    uint64_t sequence;
    std::string entry;
  };
  // Entries in one string, and where each begins.
  struct Chunk {
    struct Start {
      size_t offset;
      uint64_t sequence;
    };
    std::string bytes;
    std::vector<Start> starts;
  };
  // A checkpoint under construction.
  struct Checkpoint {
    MirroredKvStore::Snapshot snapshot;
    StreamWriter stream;
  };

  void Run();
  bool TakeChunk(Chunk* chunk) EXCLUDES(mutex_);
  bool WaitForWork() EXCLUDES(mutex_);
  bool MustSyncLocked(Clock::time_point now) const REQUIRES(mutex_);
  bool HasDueEntriesLocked(Clock::time_point now) const REQUIRES(mutex_);
  Result<void> WriteEntries(StreamWriter& stream, const Chunk& chunk);
  Result<void> Extend(StreamWriter& stream, uint64_t begun);
  bool NeedsCheckpoint() const;
  void BeginCheckpoint();
  void ContinueCheckpoint();
  Result<void> WritePart();
  Result<void> FinishCheckpoint();
  Result<void> WriteRoot(Root root);
  Result<void> WriteLists(Root* root);
  Result<void> WriteOnDevices(Root& root);
  Result<void> SettleRoots();
  void FlushIfDue();
  void GiveUpCheckpoint(const Error& error);
  void FallBehind(const Error& error);
  void Report(const Error& error);
  void Postpone();
  void Release(const std::vector<Segment>& segments);
  void ReleaseLists(const Root& root);
  void Refill();
  StreamWriter NewStream();
  void UpdateStatistics() EXCLUDES(mutex_);
  bool HasDurableLocked() const REQUIRES(mutex_) { return !pending_.empty() && pending_.front().sequence <= durable_; }

  MirroredKvStore& catalog_;
  DeviceSet& devices_;
  SpaceManager& space_;
  const Flush flush_;
  const WriterOptions options_;
  const BlockCount segment_size_;

  // Of the thread alone.
  HugePageMemory memory_;
  std::optional<Root> root_;         // as on the devices
  std::optional<StreamWriter> log_;  // nullopt: entries are dropped until the next checkpoint begins
  bool log_in_root_ = false;         // log_ continues the log of root_
  uint64_t begun_ = 0;               // the sequence of the last entry in log_
  std::optional<Checkpoint> checkpoint_;
  uint64_t root_sequence_;
  uint64_t next_stream_;
  uint64_t allocations_ = 0;
  BlockCount blocks_;             // of all segments
  SpaceReservation reservation_;  // for segments to come, so that df does not change with each of them
  bool unflushed_ = false;
  bool flush_failed_ = false;
  bool roots_differ_ = false;            // after a failed write of a root
  std::vector<Segment> held_;            // released meanwhile; a root on some device may refer to them
  Clock::duration retry_;  // until the next try; doubled by each failure
  Clock::time_point flush_due_, retry_at_;
  Clock::time_point taken_at_ = Clock::now();  // when every entry that was durable had been taken from the queue
  bool reported_behind_ = false;

  mutable Mutex mutex_;
  std::condition_variable wake_;
  std::deque<Pending> pending_ GUARDED_BY(mutex_);  // not written yet
  uint64_t pending_bytes_ GUARDED_BY(mutex_) = 0;
  Clock::time_point write_due_ GUARDED_BY(mutex_);  // when the first of them must be written
  uint64_t appended_ GUARDED_BY(mutex_) = 0, durable_ GUARDED_BY(mutex_) = 0;  // sequences
  Clock::time_point sync_due_ GUARDED_BY(mutex_);  // when appended_ > durable_
  bool collecting_ GUARDED_BY(mutex_) = false;  // entries are kept for the log
  bool sync_failed_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> renew_{false};              // a checkpoint is wanted; set under mutex_, for wake_
  bool overflowed_ GUARDED_BY(mutex_) = false;  // entries were dropped because there were too many
  bool stopping_ GUARDED_BY(mutex_) = false;
  ReplicaStatistics statistics_ GUARDED_BY(mutex_);
  bool complete_ GUARDED_BY(mutex_) = false;          // the replica has every durable batch
  Clock::time_point complete_until_ GUARDED_BY(mutex_) = Clock::now();  // the last time when it had them
  std::thread thread_;
};

}  // namespace weightfs::replica
