// SPDX-License-Identifier: Apache-2.0
// Writes the log of the catalog to the devices: the write-ahead log of the index (RocksDB), and the only durable copy
// of recent changes. On-disk layout: docs/FORMAT.md section 10.
//
// A change is appended, then applied to the index. A commit writes the appended entries as frames, and flushes the
// devices: that flush makes the entries durable together with the data that they map, which was written before. So a
// crash may leave an entry without its data. Each frame has a mark: the entry up to which everything is known to be
// durable. A mount compares the data of the entries behind the last mark with their checksums (FindDurableTail), and
// cuts the log at the first difference.
//
// Blocks that an entry frees are not used again before a frame with a mark of that entry, or a later one, is durable.
// So the data of an entry behind the last mark is never overwritten by a later one.
//
// From time to time the writer takes a checkpoint of the index, beside the log. When it is complete, and the index has
// stored the same changes in its tables (or has no space for that), a new root refers to it, and the log before it is
// freed.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "engine/device_set.h"
#include "io/huge_pages.h"
#include "meta/kv_store.h"
#include "store/space/space_manager.h"
#include "store/wal/stream_writer.h"

namespace weightfs::wal {

class LogWriter;

// What the index calls before it stores entries in its tables: they must be durable first, or the next mount finds an
// index that is ahead of the log, and has to rebuild it. Thread-safe.
class FlushGate {
 public:
  void Open(LogWriter* log) EXCLUDES(mutex_);  // null: there is none. Waits for Commit.
  void Commit() EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  LogWriter* log_ GUARDED_BY(mutex_) = nullptr;
};

// The log of an opened store.
struct WriterOptions {
  Uuid store_id{};
  std::string description;     // the text of store.json
  uint64_t root_sequence = 0;  // of the last root on the devices, also if it cannot be used
  // The index has every entry up to tail.version. Without a root, a checkpoint of the index is the first step. The
  // blocks of a root are marked as used.
  std::optional<Root> root;
  Tail tail;
  // Of a root that cannot be used, but is on the devices: used until another root is durable. Without what files have.
  std::vector<Segment> replaced;
  size_t largest_root = kRootCapacity;  // the segments of a larger one are listed beside it
  size_t largest_entry = UINT32_MAX;    // a larger one is refused: the field for its size has 32 bits
  std::chrono::milliseconds first_retry{5000};      // until a checkpoint that failed is tried again; doubled each time
  std::chrono::milliseconds write_delay{50};        // from a change until it is written, unless it is committed before
  std::chrono::milliseconds commit_interval{5000};  // from a change until it is durable
  std::chrono::milliseconds claim_delay{1000};      // from a commit until a frame has its mark
  std::function<Result<void>()> started;            // runs once the log can be written, before the first change
  std::function<Result<void>()> still_owned;        // runs after each flush: fails if another machine has the store
  std::shared_ptr<FlushGate> gate = std::make_shared<FlushGate>();
};

struct LogStatistics {
  uint64_t bytes = 0;        // of all segments
  uint64_t checkpoints = 0;  // completed since the mount
  bool intact = false;       // no part of it has to be written anew
};

// Thread-safe. Commits run on the threads of their callers, one at a time. One thread of its own keeps the times, and
// another takes checkpoints, which read the index and wait for it. No call waits for a lock of the store. A failed
// write or flush of the log ends all writing (failed).
class LogWriter {
 public:
  // Returns when the log can be written: without a usable root, after a checkpoint. kNoSpace if the pool has no space
  // for that; kIo.
  static Result<std::unique_ptr<LogWriter>> Start(KvStore& index, DeviceSet& devices, SpaceManager& space,
                                                  WriterOptions options);
  ~LogWriter();

  // Takes the entry that follows the last one. kNoSpace if a large entry does not fit; then nothing was changed. An
  // `accepted` one (KvBatch::accepted) has its space. Waits only if the devices lag far behind, or for a checkpoint
  // without which the pool has no space for the log.
  Result<void> Append(std::string_view entry, uint64_t sequence, bool accepted) EXCLUDES(io_, mutex_);
  // Makes everything durable that was appended, or written to a device, before the call. Calls that wait for another
  // share the next flush.
  Result<void> Commit() EXCLUDES(io_, mutex_);
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Retires blocks that entries before the call have freed, as soon as that is safe. ReleaseRetired makes it safe now.
  void Retire(std::vector<DeviceRun> runs) EXCLUDES(mutex_);
  void ReleaseRetired() EXCLUDES(io_, mutex_);

  // Returns kNoSpace when the pool lacks the space that the log needs before a change of this kind: enough is held back
  // for deleting everything. Waits for a checkpoint that will make space.
  Result<void> CheckSpace(KvChange change) EXCLUDES(io_, mutex_);
  // True while CheckSpace accepts kGrow once everything is committed; grows_now: without a wait.
  bool has_space() const { return grows_; }
  bool grows_now() const { return Accepts(KvChange::kGrow); }

  // Writes a new checkpoint soon, because something on the devices is damaged.
  void Renew() EXCLUDES(mutex_);
  // Commits everything, completes a renewal, and stops the thread.
  Result<void> Stop() EXCLUDES(io_, mutex_);

  LogStatistics statistics() const EXCLUDES(mutex_);
  // The time since everything was durable for the last time; 0: everything is.
  std::chrono::nanoseconds age() const EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  // Entries in one string, and where each begins.
  struct Chunk {
    struct Start {
      size_t offset;
      uint64_t sequence;
    };
    std::string bytes;
    std::vector<Start> starts;
  };
  // A checkpoint under construction. Of the thread.
  struct Checkpoint {
    std::unique_ptr<KvIterator> records;
    Version version;
    StreamWriter stream;
    uint64_t renewing;  // of renewals_, those that it makes
  };
  struct Deferred {
    uint64_t sequence;  // of the last entry that may have freed them
    std::vector<DeviceRun> runs;
  };

  LogWriter(KvStore& index, DeviceSet& devices, SpaceManager& space, WriterOptions options);
  Result<void> Prepare() EXCLUDES(io_, mutex_);
  Result<void> Restart() REQUIRES(io_);
  void KeepTimes();
  bool WaitForTime() EXCLUDES(io_, mutex_);
  bool WaitForCheckpoint() EXCLUDES(io_, mutex_);
  bool Accepts(KvChange change) const {
    return change == KvChange::kRemove || (grows_ && space_.uncommitted().value <= covered_) ||
           (updates_ && change == KvChange::kUpdate);
  }
  // True if a checkpoint is in progress, or begins soon.
  bool CheckpointComes() const REQUIRES(mutex_) {
    return !stopping_ && (checkpointing_ || (checkpoint_due_ && !given_up_));
  }
  Result<void> ReserveFor(ByteCount entry, uint64_t sequence, bool accepted) EXCLUDES(io_);

  Result<void> WritePending() REQUIRES(io_) EXCLUDES(mutex_);
  Result<void> WriteEntries(const Chunk& chunk, uint64_t durable) REQUIRES(io_);
  Result<void> CommitPending() REQUIRES(io_) EXCLUDES(mutex_);
  Result<void> Flush() REQUIRES(io_) EXCLUDES(mutex_);
  Result<void> Claim() REQUIRES(io_) EXCLUDES(mutex_);
  Error Fail(const Error& error) EXCLUDES(mutex_);
  void ReleaseDeferred() REQUIRES(io_) EXCLUDES(mutex_);

  Result<void> ReserveBesideLog(BlockCount count) REQUIRES(io_);
  Result<void> Extend(StreamWriter& stream, BlockCount count, uint64_t begun) REQUIRES(io_);
  bool NeedsCheckpoint() const REQUIRES(io_);
  void ContinueCheckpoint() EXCLUDES(io_, mutex_);
  Result<void> BeginCheckpoint() EXCLUDES(io_);
  Result<void> WritePart() EXCLUDES(io_);
  Result<void> FinishCheckpoint() EXCLUDES(io_, mutex_);
  void GiveUpCheckpoint(const Error& error) EXCLUDES(io_);
  Result<void> WriteRoot(Root root) REQUIRES(io_);
  Result<void> WriteLists(Root* root) REQUIRES(io_);
  Result<void> WriteOnDevices(Root& root) REQUIRES(io_);
  Result<void> WriteCopies(Root& root, size_t turn) REQUIRES(io_);
  void ChooseFirstCopies() REQUIRES(io_);
  Result<void> SettleRoots() REQUIRES(io_);
  void Release(const std::vector<Segment>& segments) REQUIRES(io_);
  void ReleaseLists(const Root& root) REQUIRES(io_);
  BlockCount Begun() const REQUIRES(io_);
  BlockCount Needed() const REQUIRES(io_);
  BlockCount Wanted() const REQUIRES(io_);
  BlockCount Promised() const REQUIRES(io_);
  void Refill() REQUIRES(io_);
  StreamWriter NewStream() REQUIRES(io_);
  void UpdateStatistics() REQUIRES(io_) EXCLUDES(mutex_);

  KvStore& index_;
  DeviceSet& devices_;
  SpaceManager& space_;
  const WriterOptions options_;
  const BlockCount segment_size_, least_log_;
  std::atomic<bool> failed_{false};

  // Locked before mutex_ and before the locks of `space_`. Whoever holds it waits for devices only.
  mutable Mutex io_;
  HugePageMemory memory_ GUARDED_BY(io_);
  std::optional<Root> root_ GUARDED_BY(io_);       // as on the devices
  std::optional<StreamWriter> log_ GUARDED_BY(io_);
  uint64_t begun_ GUARDED_BY(io_) = 0;             // the sequence of the last entry in log_
  uint64_t written_ GUARDED_BY(io_) = 0;           // that of the last one that is whole
  uint64_t mark_ GUARDED_BY(io_) = 0;              // of the last frame
  uint64_t root_sequence_ GUARDED_BY(io_), next_stream_ GUARDED_BY(io_);
  std::vector<std::array<size_t, 2>> first_copies_ GUARDED_BY(io_);  // by device and pair: 0, or 1 for the second one
  uint64_t allocations_ GUARDED_BY(io_) = 0;
  BlockCount blocks_ GUARDED_BY(io_);              // of all segments
  BlockCount kept_ GUARDED_BY(io_);                // of the last segment of the log after the last checkpoint
  SpaceReservation reservation_ GUARDED_BY(io_);   // for segments to come
  BlockCount promised_ GUARDED_BY(io_);            // a part of it, for a large entry
  uint64_t promised_to_ GUARDED_BY(io_) = 0;       // its sequence
  bool roots_differ_ GUARDED_BY(io_) = false;      // after a failed write of a root
  std::vector<Segment> held_ GUARDED_BY(io_);      // released meanwhile; a root on some device may refer to them
  std::atomic<bool> grows_{false}, updates_{false}, tight_{false};  // what the reservation allows (Refill)
  std::atomic<uint64_t> covered_{0};  // the bytes of uncommitted changes that it has space for

  // Of the thread that takes checkpoints, and before that of Prepare.
  std::optional<Checkpoint> checkpoint_;
  Clock::duration retry_;  // until the next try; doubled by each failure
  bool reported_ = false;

  mutable Mutex mutex_;
  std::condition_variable wake_, checkpoint_wake_, checkpointed_;
  Clock::time_point retry_at_ GUARDED_BY(mutex_);
  Chunk pending_ GUARDED_BY(mutex_);  // not written yet
  uint64_t appended_ GUARDED_BY(mutex_) = 0, durable_ GUARDED_BY(mutex_) = 0, marked_ GUARDED_BY(mutex_) = 0;
  uint64_t commits_ GUARDED_BY(mutex_) = 0;  // that have begun
  std::deque<Deferred> deferred_ GUARDED_BY(mutex_);
  Clock::time_point write_due_ GUARDED_BY(mutex_), commit_due_ GUARDED_BY(mutex_), claim_due_ GUARDED_BY(mutex_);
  Clock::time_point durable_until_ GUARDED_BY(mutex_);  // when everything was durable for the last time
  std::optional<Error> failure_ GUARDED_BY(mutex_);
  uint64_t renewals_ GUARDED_BY(mutex_) = 0, renewed_ GUARDED_BY(mutex_) = 0;  // wanted, and made
  bool checkpoint_due_ GUARDED_BY(mutex_) = false;
  bool checkpointing_ GUARDED_BY(mutex_) = false;  // from BeginCheckpoint until it is complete or given up
  bool given_up_ GUARDED_BY(mutex_) = false;       // the last checkpoint was
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool ticking_ GUARDED_BY(mutex_) = false;  // the timer looks at the times after the shortest delay
  LogStatistics statistics_ GUARDED_BY(mutex_);
  std::thread timer_, checkpointer_;
};

}  // namespace weightfs::wal
