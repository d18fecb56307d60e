// SPDX-License-Identifier: Apache-2.0
#include "meta/shared_sync.h"

namespace weightfs {

Result<void> SharedSync::Sync() {
  MutexLock lock(mutex_);
  if (failure_) return ErrorCode::kReadOnly;
  const uint64_t target = written_.load(std::memory_order_acquire);
  while (running_ && durable_ < target) {
    ++waiting_;
    finished_.wait(lock.native());
    --waiting_;
  }
  if (durable_ >= target) return {};
  if (failure_) return *failure_;

  running_ = true;
  // Read before the sync begins: a write that is noted while the sync runs may be too late for it.
  const uint64_t covered = written_.load(std::memory_order_acquire);
  lock.Unlock();
  Result<void> result = sync_();
  lock.Lock();
  running_ = false;
  if (result.has_value()) {
    durable_ = covered;
  } else {
    failure_ = result.error();
  }
  finished_.notify_all();
  return result;
}

uint64_t SharedSync::waiting() const {
  MutexLock lock(mutex_);
  return waiting_;
}

}  // namespace weightfs
