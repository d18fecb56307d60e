// SPDX-License-Identifier: Apache-2.0
// The free space of the filesystem of a catalog. Private to meta/.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "meta/kv_store.h"

namespace weightfs {

// Thread-safe.
//
// RocksDB stops for good when a write fails for lack of space. So its files wait for space instead (Await), and changes
// collect in memory: nothing is lost, because the log of the store has them. Meanwhile the catalog may not grow,
// removing goes on, and nobody waits for RocksDB.
//
// A store alone never gets there. What makes the catalog grow leaves the free space that flushes and compactions need
// to delete everything, so that it can be written again without help; what replaces records leaves half of that, or
// stays in memory. If other programs take that space, it lasts until they free some.
class CatalogSpace {
 public:
  // Deleting everything needs twice the size of the catalog, within these limits. (Measured: 0.85 of the size, when
  // every record belongs to an empty file.) The upper limit is the need of the largest catalog: tables of 16 MiB, and a
  // compaction of 176 MiB (RocksKvStore's options).
  static constexpr uint64_t kLeastNeed = 8 * kMiB, kLargestNeed = 256 * kMiB;
  static uint64_t NeedOf(uint64_t catalog_bytes);
  // What must be left beside the need before the catalog may grow.
  static constexpr uint64_t kMargin = 4 * kMiB;
  // Changes that replace records are accepted without any space while the memory holds less than this.
  static constexpr uint64_t kUpdatesInMemory = 16 * kMiB;

  struct Usage {
    uint64_t stored = 0;  // bytes of all tables
    uint64_t memory = 0;  // bytes that are in memory only
    bool behind = false;  // flushes or compactions, so that writers should wait
  };
  enum class Work : uint8_t { kFlush, kCompact };  // kCompact: after a flush, frees the space of removed records
  struct Catalog {
    std::function<Usage()> usage;
    std::function<Result<void>(Work)> work;  // may take long
    std::function<bool()> failed;            // no flush will end any more
  };

  // Call it on the thread that then opens the catalog. Without `awaits_space` RocksDB gets errors of a full filesystem.
  static Result<std::unique_ptr<CatalogSpace>> Open(const std::string& directory, bool awaits_space);
  ~CatalogSpace() { Close(); }

  // The catalog is open. Call it before the other functions except Await and FreeBytes. kAgain: no thread.
  Result<void> Start(Catalog catalog);
  // Before the catalog is closed: no file waits any more. Waits for the work in progress.
  void Close() EXCLUDES(mutex_);

  // Returns kNoSpace when a change of this kind has no space. If anything was written since the last compaction, waits
  // for another one.
  Result<void> Check(KvChange change);
  // The same for growth by `bytes`.
  Result<KvClaim> Claim(uint64_t bytes) EXCLUDES(measuring_);
  // Records a write. Waits while flushes or compactions lag behind, unless they wait for space.
  void NoteWrite(uint64_t bytes);
  void NoteProgress() EXCLUDES(mutex_);  // a flush or compaction has ended, or failed
  // Stores in tables what was written before the call. kNoSpace if that has to wait for space; it is done later.
  Result<void> Flush() { return Do(Work::kFlush); }
  uint64_t FreeSpace();  // bytes by which the catalog may still grow

  // For a file that found no space: calls `attempt` until it returns true, with growing pauses. Returns early when the
  // catalog is closed, and at once on the thread that opens it, which then fails. It can do so only before RocksDB begins
  // to work in the background: what it writes later, its options, is not needed.
  void Await(const std::function<bool()>& attempt) EXCLUDES(mutex_);
  uint64_t FreeBytes() const;  // of the filesystem

 private:
  using Clock = std::chrono::steady_clock;

  CatalogSpace(std::string path, UniqueFd directory, bool awaits_space)
      : path_(std::move(path)), directory_(std::move(directory)), awaits_space_(awaits_space) {}
  bool Allows(KvChange change, uint64_t bytes = 0) const;
  void Measure() EXCLUDES(mutex_, measuring_);
  void MeasureLocked() REQUIRES(measuring_);
  void LogFull(bool full);
  bool MayCompact() EXCLUDES(mutex_);
  uint64_t Request(Work work) EXCLUDES(mutex_);
  Result<void> Do(Work work) EXCLUDES(mutex_);
  void RunWork() EXCLUDES(mutex_);

  const std::string path_;
  const UniqueFd directory_;
  const bool awaits_space_;
  Catalog catalog_;

  std::atomic<Clock::time_point> measured_{Clock::time_point()};
  // Of the last measurement. The surplus is the free space beyond the need; negative when that is not met.
  std::atomic<int64_t> surplus_{0};
  std::atomic<uint64_t> need_{kLeastNeed}, memory_{0};
  std::atomic<bool> behind_{false};
  std::atomic<uint64_t> unmeasured_{0};   // bytes written since then
  std::atomic<uint64_t> uncompacted_{0};  // bytes written since the last compaction
  std::atomic<uint64_t> progress_{0};     // flushes and compactions that have ended
  std::atomic<uint64_t> waiting_{0};      // files in Await; changed under mutex_
  std::atomic<bool> logged_full_{false};

  // No measurement replaces a newer one, and each counts what was claimed or what it became. Over RocksDB's mutex.
  Mutex measuring_;
  std::atomic<uint64_t> claimed_{0};  // bytes; changed under measuring_

  Mutex mutex_;
  std::condition_variable changed_;  // of callers
  std::condition_variable retry_;    // of files in Await
  std::condition_variable work_;     // of the thread
  std::thread::id opener_ GUARDED_BY(mutex_) = std::this_thread::get_id();  // none after the start
  bool closed_ GUARDED_BY(mutex_) = false;
  // The work is done in runs: numbers of the last one that is wanted, begun and done.
  uint64_t requested_ GUARDED_BY(mutex_) = 0, running_ GUARDED_BY(mutex_) = 0, done_ GUARDED_BY(mutex_) = 0;
  bool compacts_ GUARDED_BY(mutex_) = false;    // in the next run
  bool compacting_ GUARDED_BY(mutex_) = false;  // in this run
  Result<void> result_ GUARDED_BY(mutex_);      // of the last run
  Clock::time_point next_compaction_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace weightfs
