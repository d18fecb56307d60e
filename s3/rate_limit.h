// SPDX-License-Identifier: Apache-2.0
// The bytes per second that several transfers may send together.
#pragma once

#include <algorithm>
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
  Turn Reserve(size_t wanted, Clock::time_point now) EXCLUDES(mutex_) {
    if (rate_ == 0) return {wanted, now};
    const auto piece = static_cast<size_t>(std::clamp(rate_ * kPieceSeconds, 1.0, static_cast<double>(wanted)));
    const std::chrono::duration<double> time(static_cast<double>(piece) / rate_);
    MutexLock lock(mutex_);
    next_ = std::max(next_, now - kBurst) + std::chrono::ceil<Clock::duration>(time);
    return {piece, next_};
  }

 private:
  static constexpr std::chrono::milliseconds kBurst{100};  // after a pause
  // Of a piece. A hundred a second, so that no sender waits so long for its turn that the service ends its request.
  static constexpr double kPieceSeconds = 0.01;

  const double rate_;
  Mutex mutex_;
  Clock::time_point next_ GUARDED_BY(mutex_) = {};  // when all reserved bytes have been sent
};

}  // namespace weightfs::s3
