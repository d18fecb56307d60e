// SPDX-License-Identifier: Apache-2.0
// What each process and each file does, for `weightfs stats --by`. Private to fs/.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>

#include "common/mutex.h"
#include "fs/caller.h"
#include "fs/request_metrics.h"
#include "lease/ioctl.h"

namespace weightfs {

// Counts while somebody looks, but not the requests of those who look. Costs one look at an atomic while nobody does.
// Thread-safe.
class Activity {
 public:
  using Clock = std::chrono::steady_clock;
  void Record(const RequestOrigin& origin, uint64_t bytes) {
    if (origin.begin < watched_until_.load(std::memory_order_relaxed)) Add(origin, bytes, false);
  }
  // Bytes that a lease covers: read when it begins, or written when it is committed. The kind is kRead or kWrite.
  void RecordLease(const RequestOrigin& origin, uint64_t bytes) {
    if (origin.begin < watched_until_.load(std::memory_order_relaxed)) Add(origin, bytes, true);
  }
  // Returns the busiest entries since the look whose answer had `next` == `since`; none for 0. Watches for some seconds
  // from now on. Several programs may look, each with its own numbers. `viewer` is a thread of the one that looks.
  weightfs_top Look(uint64_t since, int32_t viewer = 0) EXCLUDES(mutex_);

 private:
  using Table = std::map<uint64_t, weightfs_top_entry>;
  // The time between two looks.
  struct Interval {
    uint64_t number = 0;
    Clock::time_point begin;
    Table processes, files;
  };
  static constexpr size_t kMostEntries = 4096;  // of a table; what comes later is counted as WEIGHTFS_TOP_OTHERS
  static constexpr size_t kMostIntervals = 64;

  void Add(const RequestOrigin& origin, uint64_t bytes, bool leased) EXCLUDES(mutex_);
  static void AddTo(Table& table, uint64_t id, const weightfs_top_entry& entry);
  static void Merge(const Table& from, Table* to);
  void DropOld(Clock::time_point now) REQUIRES(mutex_);

  std::atomic<Clock::time_point> watched_until_{};
  ThreadOwners owners_;
  Mutex mutex_;
  uint64_t last_number_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Clock::time_point> viewers_ GUARDED_BY(mutex_);  // processes that look, and until when
  std::deque<Interval> intervals_ GUARDED_BY(mutex_);  // the oldest first; the last one has not ended
};

}  // namespace weightfs
