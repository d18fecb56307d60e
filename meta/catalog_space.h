// SPDX-License-Identifier: Apache-2.0
// The free space that a catalog needs on its filesystem. A part of it is held in a file, the reserve, so that deleting
// works, and RocksDB can compact, after other programs have filled the filesystem. Private to meta/.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/guarded_directory.h"
#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "common/units.h"
#include "meta/kv_store.h"
#include "meta/reserve_file.h"

namespace weightfs {

// Thread-safe.
//
// A change may use space down to a mark that depends on its kind: one that lets the catalog grow leaves all that is
// needed to delete everything, one that replaces records leaves half of that, and one that removes records leaves an
// eighth, which belongs to RocksDB's own writes.
class CatalogSpace {
 public:
  static constexpr const char* kReserveName = "reserve";

  // Deleting everything needs twice the size of the catalog, within these limits. (Measured: 0.85 of the size, when
  // every record belongs to an empty file.) The upper limit is the need of the largest catalog: two logs and two tables
  // of 16 MiB, and a compaction of 176 MiB (RocksKvStore's options).
  static constexpr uint64_t kLeastNeed = 8 * kMiB, kLargestNeed = 256 * kMiB;
  static uint64_t NeedOf(uint64_t catalog_bytes);
  // The reserve holds this much more, so that an emptied store can be written again while other programs keep the
  // filesystem full.
  static constexpr uint64_t kSurplus = 8 * kMiB;
  // What must be left beside the need before the catalog may grow.
  static constexpr uint64_t kMargin = 4 * kMiB;

  static Result<std::unique_ptr<CatalogSpace>> Open(const GuardedDirectory& directory);

  // From now on `size` returns the bytes of the catalog, and `compact` gives the space of the log and of removed records
  // back to the filesystem. Call it before the other functions except Release.
  void Start(std::function<uint64_t()> size, std::function<void()> compact);

  // Returns kNoSpace when a change of this kind has no space. If anything was written since the last compaction,
  // compacts first, which can take a second.
  Result<void> Check(KvChange change);
  // Records that `bytes` were written to the log.
  void NoteWrite(uint64_t bytes);
  // Gives `bytes` of the reserve back to the filesystem. Returns false if the reserve is empty.
  bool Release(uint64_t bytes) EXCLUDES(mutex_);

  uint64_t FreeSpace();  // bytes by which the catalog may still grow

 private:
  using Clock = std::chrono::steady_clock;

  CatalogSpace(std::string path, UniqueFd directory, ReserveFile reserve)
      : path_(std::move(path)), directory_(std::move(directory)), reserve_(std::move(reserve)) {}
  int64_t LeastSurplus(KvChange change) const;
  bool Allows(KvChange change) const { return surplus_.load(std::memory_order_relaxed) >= LeastSurplus(change); }
  void Measure() EXCLUDES(mutex_);
  void LogFull(bool full) EXCLUDES(mutex_);
  bool Compact() EXCLUDES(compacting_);

  const std::string path_;
  const UniqueFd directory_;
  std::function<uint64_t()> size_;
  std::function<void()> compact_;

  // Free and reserved bytes beyond the need, as of the last measurement and less what was written since then. Negative
  // when the need is not met.
  std::atomic<int64_t> surplus_{0};
  std::atomic<uint64_t> need_{kLeastNeed};
  std::atomic<uint64_t> unmeasured_{0};   // bytes written since the last measurement
  std::atomic<uint64_t> uncompacted_{0};  // bytes written since the last compaction

  Mutex mutex_;
  ReserveFile reserve_ GUARDED_BY(mutex_);
  bool logged_full_ GUARDED_BY(mutex_) = false;

  Mutex compacting_;
  Clock::time_point next_compaction_ GUARDED_BY(compacting_);
};

}  // namespace weightfs
