// SPDX-License-Identifier: Apache-2.0
// Page-aligned memory for buffered writes and cached reads. Large buffers are kept for reuse, because the page faults
// of fresh memory cost as much as copying into it.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "common/units.h"

namespace weightfs::hdf5 {

// Externally synchronized. Buffers may outlive their pool.
class MemoryPool {
 public:
  static constexpr size_t kAlignment = 4096;
  static constexpr size_t kHugePage = 2 << 20;
  static constexpr size_t kKept = 4;  // maximum number of free large buffers

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  struct Buffer {
    std::unique_ptr<std::byte, Free> memory;
    size_t capacity = 0;
    std::byte* data() const { return memory.get(); }
  };

  // Returns null memory if the allocation fails. The capacity is at least `size`.
  Buffer Take(size_t size) {
    for (auto& kept : kept_) {
      if (kept.capacity < size || kept.capacity > 2 * size) continue;
      Buffer taken = std::move(kept);
      kept = std::move(kept_.back());
      kept_.pop_back();
      return taken;
    }
    const bool large = size >= kHugePage;
    const size_t capacity = RoundUp(size, large ? kHugePage : kAlignment);
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(large ? kHugePage : kAlignment, capacity));
    if (memory != nullptr && large) madvise(memory, capacity, MADV_HUGEPAGE);
    return {.memory = std::unique_ptr<std::byte, Free>(memory), .capacity = memory == nullptr ? 0 : capacity};
  }
  void Give(Buffer buffer) {
    if (buffer.capacity >= kHugePage && kept_.size() < kKept) kept_.push_back(std::move(buffer));
  }
  void Clear() { kept_.clear(); }

 private:
  std::vector<Buffer> kept_;
};

}  // namespace weightfs::hdf5
