// SPDX-License-Identifier: Apache-2.0
// Page-aligned memory for buffered writes and cached reads. Large buffers are kept for reuse, also by the next file,
// because the page faults of fresh memory cost as much as copying into it, and in a virtual machine many times that.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <vector>

#include "common/mutex.h"
#include "common/units.h"

namespace weightfs::hdf5 {

// Thread-safe. Buffers may outlive their pool.
class MemoryPool {
 public:
  // The pool of this process. It is never destroyed, because HDF5 closes files when the process exits.
  static MemoryPool& Shared() {
    static auto* const pool = new MemoryPool;
    return *pool;
  }

  static constexpr size_t kAlignment = 4096;
  static constexpr size_t kHugePage = 2 << 20;
  static constexpr size_t kMostKept = 64 << 20;  // bytes of free buffers

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  struct Buffer {
    std::unique_ptr<std::byte, Free> memory;
    size_t capacity = 0;
    std::byte* data() const { return memory.get(); }
  };

  // Returns null memory if the allocation fails. The capacity is at least `size`.
  Buffer Take(size_t size) EXCLUDES(mutex_) {
    if (Buffer kept = TakeKept(size); kept.data() != nullptr) return kept;
    const bool large = size >= kHugePage;
    const size_t capacity = RoundUp(size, large ? kHugePage : kAlignment);
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(large ? kHugePage : kAlignment, capacity));
    if (memory != nullptr && large) madvise(memory, capacity, MADV_HUGEPAGE);
    return {.memory = std::unique_ptr<std::byte, Free>(memory), .capacity = memory == nullptr ? 0 : capacity};
  }
  void Give(Buffer buffer) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (buffer.capacity < kHugePage || kept_bytes_ + buffer.capacity > kMostKept) return;
    kept_bytes_ += buffer.capacity;
    kept_.push_back(std::move(buffer));
  }

 private:
  Buffer TakeKept(size_t size) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto fits = [&](const Buffer& kept) { return kept.capacity >= size && kept.capacity <= 2 * size; };
    const auto found = std::find_if(kept_.begin(), kept_.end(), fits);
    if (found == kept_.end()) return {};
    Buffer taken = std::move(*found);
    kept_bytes_ -= taken.capacity;
    kept_.erase(found);
    return taken;
  }

  Mutex mutex_;
  std::vector<Buffer> kept_ GUARDED_BY(mutex_);
  size_t kept_bytes_ GUARDED_BY(mutex_) = 0;
};

// Of buffers that do not overlap, by the offset of their first byte: the first one that ends after `offset`, or end().
template <typename Map>
auto FirstFrom(Map& buffers, uint64_t offset) {
  auto next = buffers.upper_bound(offset);
  if (next != buffers.begin() && std::prev(next)->first + std::prev(next)->second.size > offset) --next;
  return next;
}

}  // namespace weightfs::hdf5
