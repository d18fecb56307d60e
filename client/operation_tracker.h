// SPDX-License-Identifier: Apache-2.0
// Counts the operations that Handle::Wait waits for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <set>
#include <utility>

#include "client/handle.h"
#include "common/mutex.h"

namespace weightfs::client {

// Interval at which a waiting thread checks for an interrupt.
inline constexpr auto kInterruptCheckInterval = std::chrono::milliseconds(100);

// Thread-safe.
class OperationTracker {
 public:
  // Registers an operation and returns its number.
  uint64_t Begin() {
    const MutexLock lock(mutex_);
    pending_.insert(next_);
    return next_++;
  }

  void End(uint64_t number, const Error* error, bool own_errors) {
    const MutexLock lock(mutex_);
    pending_.erase(number);
    changed_.notify_all();
    if (own_errors) return;
    if (error == nullptr) {
      ++completed_.count;
      return;
    }
    ++completed_.failed;
    if (completed_.errors.size() < Handle::kMaxErrors) completed_.errors.push_back(*error);
  }

  Handle::Completed Wait(const Interrupted& interrupted) {
    MutexLock lock(mutex_);
    const uint64_t until = next_;
    auto look = std::chrono::steady_clock::now() + kInterruptCheckInterval;
    while (!pending_.empty() && *pending_.begin() < until) {
      if (changed_.wait_until(lock.native(), look) == std::cv_status::no_timeout &&
          std::chrono::steady_clock::now() < look) {
        continue;
      }
      lock.Unlock();
      if (interrupted && interrupted()) return {};
      lock.Lock();
      look = std::chrono::steady_clock::now() + kInterruptCheckInterval;
    }
    return std::exchange(completed_, {});
  }

  size_t pending() const {
    const MutexLock lock(mutex_);
    return pending_.size();
  }

 private:
  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::set<uint64_t> pending_ GUARDED_BY(mutex_);  // operation numbers, in order of their start
  uint64_t next_ GUARDED_BY(mutex_) = 1;
  Handle::Completed completed_ GUARDED_BY(mutex_);
};

}  // namespace weightfs::client
