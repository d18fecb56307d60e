// SPDX-License-Identifier: Apache-2.0
// How many extents the files in memory have.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstddef>

namespace weightfs {

// Counts the extents of all files in memory, and returns the memory of many freed ones to the system: the allocator
// would keep it, because it lies among other small objects. Thread-safe.
class ExtentMemory {
 public:
  static constexpr size_t kExtentBytes = 80;  // of one, with the overhead of the map and of the allocator

  size_t extents() const { return extents_.load(std::memory_order_relaxed); }

  // A file had `before` extents in memory, and now has `after`.
  void Change(size_t before, size_t after) {
    extents_ += after - before;
    if (after < before) Freed(before - after);
  }

  // Other memory of so many extents was freed, as after a commit of their changes.
  void Freed(size_t extents) {
    if ((freed_ += extents) < kFreedAtOnce) return;
    freed_ = 0;
    malloc_trim(0);
  }

 private:
  static constexpr size_t kFreedAtOnce = size_t{1} << 19;  // 40 MiB

  std::atomic<size_t> extents_ = 0;
  std::atomic<size_t> freed_ = 0;  // since the last time
};

}  // namespace weightfs
