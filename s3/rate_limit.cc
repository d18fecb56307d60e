// SPDX-License-Identifier: Apache-2.0
#include "s3/rate_limit.h"

#include <algorithm>

namespace weightfs::s3 {
namespace {

// After a pause.
constexpr std::chrono::milliseconds kBurst{100};
// Of a piece. A hundred a second, so that no sender waits so long for its turn that the service ends its request.
constexpr double kPieceSeconds = 0.01;

}  // namespace

RateLimit::Turn RateLimit::Reserve(size_t wanted, Clock::time_point now) {
  if (rate_ == 0) return {wanted, now};
  const auto piece = static_cast<size_t>(std::clamp(rate_ * kPieceSeconds, 1.0, static_cast<double>(wanted)));
  const std::chrono::duration<double> time(static_cast<double>(piece) / rate_);
  MutexLock lock(mutex_);
  next_ = std::max(next_, now - kBurst) + std::chrono::ceil<Clock::duration>(time);
  return {piece, next_};
}

}  // namespace weightfs::s3
