// SPDX-License-Identifier: Apache-2.0
// The bytes per second that several transfers may send together.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/mutex.h"

namespace weightfs::s3 {

// Transfers that send at the same time take turns, so that each makes progress. Thread-safe.
class RateLimit {
 public:
  using Clock = std::chrono::steady_clock;
  struct Turn {
    size_t bytes = 0;
    Clock::time_point time = {};  // when they may be sent
  };

  // Bytes per second; 0: unlimited.
  explicit RateLimit(uint64_t rate) : rate_(static_cast<double>(rate)) {}

  // Reserves a piece of the `wanted` bytes, at least one, after all that were reserved before.
  Turn Reserve(size_t wanted, Clock::time_point now) EXCLUDES(mutex_);

 private:
  const double rate_;
  Mutex mutex_;
  Clock::time_point next_ GUARDED_BY(mutex_) = {};  // when all reserved bytes have been sent
};

}  // namespace weightfs::s3
