// SPDX-License-Identifier: Apache-2.0
// Shares one sync among many callers: a caller that arrives while a sync is running waits for the next one, which a
// single caller runs for all of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <optional>

#include "common/mutex.h"
#include "common/result.h"

namespace weightfs {

// Thread-safe.
class SharedSync {
 public:
  // `sync` makes everything durable that was written before it was called. It runs on a caller's thread, never
  // concurrently, and never again after a failure, because a second attempt may succeed although the first one lost
  // pages.
  explicit SharedSync(std::function<Result<void>()> sync) : sync_(std::move(sync)) {}

  // Records a write. Every later Sync covers it. Wait-free.
  void NoteWrite() { written_.fetch_add(1, std::memory_order_acq_rel); }

  // Returns when everything noted before the call is durable, at once when it already is. Returns the error of the sync
  // that failed, or kReadOnly when a sync failed before the call.
  Result<void> Sync() EXCLUDES(mutex_);

  // The number of callers in Sync that wait for the caller that runs it.
  uint64_t waiting() const EXCLUDES(mutex_);

 private:
  const std::function<Result<void>()> sync_;
  std::atomic<uint64_t> written_{0};
  mutable Mutex mutex_;
  std::condition_variable finished_;
  bool running_ GUARDED_BY(mutex_) = false;
  uint64_t durable_ GUARDED_BY(mutex_) = 0;  // the number of writes known to be durable
  uint64_t waiting_ GUARDED_BY(mutex_) = 0;
  std::optional<Error> failure_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
