// SPDX-License-Identifier: Apache-2.0
// Busy-polls for the next request for a moment before sleeping, while requests arrive quickly. Private to fs/.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace weightfs {

// Waking a sleeping thread on an idle processor takes longer than serving a request about names. The receivers of a
// session share one SpinWait, and one of them polls at a time. After a pause longer than `limit` receivers sleep at
// once, so an idle mount uses no CPU. Thread-safe.
class SpinWait {
 public:
  explicit SpinWait(std::chrono::microseconds limit) : limit_(limit) {}

  // Returns when `descriptor` is readable, or when polling is not, or no longer, worthwhile.
  void Wait(int descriptor) {
    if (!worthwhile_.load(std::memory_order_relaxed) || looking_.exchange(true)) return;
    pollfd look{.fd = descriptor, .events = POLLIN, .revents = 0};
    const auto until = Now() + limit_.count();
    while (poll(&look, 1, 0) == 0 && Now() < until) {
    }
    looking_.store(false);
  }
  // Call this when a request was received, at `now`. `quick`: it waits for no device and copies little.
  void Arrived(bool quick, std::chrono::steady_clock::time_point now) {
    const int64_t time = now.time_since_epoch().count();
    const bool soon = limit_.count() > 0 && time - finished_.load(std::memory_order_relaxed) < limit_.count();
    worthwhile_.store(soon && quick, std::memory_order_relaxed);
  }
  // Call this when the request has been served, at `now`.
  void Finished(std::chrono::steady_clock::time_point now) {
    if (limit_.count() > 0) finished_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }

 private:
  static int64_t Now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

  const std::chrono::nanoseconds limit_;
  std::atomic<int64_t> finished_{0};  // when the last request was served
  std::atomic<bool> worthwhile_{false};
  std::atomic<bool> looking_{false};
};

}  // namespace weightfs
