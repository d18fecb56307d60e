// SPDX-License-Identifier: Apache-2.0
// The processes that threads belong to. The kernel tells a FUSE daemon only the thread of a request. Private to fs/.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>

#include "common/mutex.h"

namespace weightfs {

// A process, as this process sees it.
struct ThreadOwner {
  uint64_t process = 0;  // 0: the kernel, or a process that this process does not see
  std::array<char, 16>
      name{};  // of its program, without a NUL if it has 16 bytes; empty if it ended before it was seen
};

// Reads /proc for a thread at most once a second. Thread-safe.
class ThreadOwners {
 public:
  // A thread that has ended, or an unreadable /proc, leave the last known owner, or the thread itself without a name.
  ThreadOwner Of(int32_t thread) EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  struct Known {
    ThreadOwner owner;
    Clock::time_point read;
  };
  static constexpr size_t kMostKnown = 4096;

  Mutex mutex_;
  std::map<int32_t, Known> known_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
