// SPDX-License-Identifier: Apache-2.0
// Looking for the next request for a moment before going to sleep, while requests come fast. Private to fs/.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace weightfs {

// Waking a sleeping thread on an idle processor takes longer than serving a request about names. Shared by the
// receivers of a session, of which one at a time looks. After a pause longer than `limit` receivers sleep at once, so
// an idle mount uses no processor. Thread-safe.
class SpinWait {
 public:
  explicit SpinWait(std::chrono::microseconds limit) : limit_(limit) {}

  // Returns when `descriptor` is readable, or when looking is not worth it (any more).
  void Wait(int descriptor) {
    if (!worthwhile_.load(std::memory_order_relaxed) || looking_.exchange(true)) return;
    pollfd look{.fd = descriptor, .events = POLLIN, .revents = 0};
    const auto until = Now() + limit_.count();
    while (poll(&look, 1, 0) == 0 && Now() < until) {
    }
    looking_.store(false);
  }
  // A request was received; `quick` when it waits for no device and copies little.
  void Arrived(bool quick) {
    const bool soon = limit_.count() > 0 && Now() - finished_.load(std::memory_order_relaxed) < limit_.count();
    worthwhile_.store(soon && quick, std::memory_order_relaxed);
  }
  // It has been served.
  void Finished() {
    if (limit_.count() > 0) finished_.store(Now(), std::memory_order_relaxed);
  }

 private:
  static int64_t Now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

  const std::chrono::nanoseconds limit_;
  std::atomic<int64_t> finished_{0};  // when the last request was served
  std::atomic<bool> worthwhile_{false};
  std::atomic<bool> looking_{false};
};

}  // namespace weightfs
