// SPDX-License-Identifier: Apache-2.0
// A token bucket: the bytes per second that several transfers may send together.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace weightfs::s3 {

// Not thread-safe.
class RateLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Bytes per second; 0: unlimited.
  explicit RateLimit(uint64_t rate) : rate_(static_cast<double>(rate)) {}

  // Returns how many of `wanted` bytes may be sent now, and counts them as sent. 0: none yet.
  size_t Take(size_t wanted, Time now);

 private:
  const double rate_;
  double available_ = 0;
  Time filled_ = {};
};

}  // namespace weightfs::s3
