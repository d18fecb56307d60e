// SPDX-License-Identifier: Apache-2.0
// Cached extents of a file: pages of metadata, and read-ahead windows.
#pragma once

#include <cstring>
#include <map>
#include <span>

#include "common/assert.h"
#include "hdf5/memory_pool.h"

namespace weightfs::hdf5 {

// Externally synchronized. Extents never overlap, and include buffered writes.
class ReadCache {
 public:
  struct Extent {
    MemoryPool::Buffer buffer;
    size_t size = 0;  // bytes
    uint64_t last_use = 0;
  };
  using Extents = std::map<uint64_t, Extent>;  // by the offset of the first byte

  ReadCache(MemoryPool* pool, size_t limit) : pool_(pool), limit_(limit) {}
  ~ReadCache() { Clear(); }
  ReadCache(const ReadCache&) = delete;
  ReadCache& operator=(const ReadCache&) = delete;

  // Returns the extent that contains the byte at `offset`, or end().
  Extents::iterator Find(uint64_t offset) {
    const auto first = FirstFrom(offset);
    return first != extents_.end() && first->first <= offset ? first : extents_.end();
  }
  // Returns the first extent that ends after `offset`, or end().
  Extents::iterator FirstFrom(uint64_t offset) { return hdf5::FirstFrom(extents_, offset); }
  // Returns the end of the last extent before the byte at `offset`, or 0.
  uint64_t EndBefore(uint64_t offset) const {
    const auto next = extents_.upper_bound(offset);
    return next == extents_.begin() ? 0 : std::min(offset, std::prev(next)->first + std::prev(next)->second.size);
  }
  // Adds an extent that overlaps no other. Evicts the least recently used extents if the cache exceeds its limit.
  void Add(uint64_t begin, Extent extent) {
    const auto next = FirstFrom(begin);
    WEIGHTFS_ASSERT(next == extents_.end() || next->first >= begin + extent.size);
    bytes_ += extent.size;
    const auto added = extents_.emplace_hint(next, begin, std::move(extent));
    Touch(added);
    if (bytes_ > limit_) Shrink(added);
  }
  // Removes all extents that overlap the range.
  void Drop(uint64_t begin, uint64_t end) {
    for (auto at = FirstFrom(begin); at != extents_.end() && at->first < end;) at = Remove(at);
  }
  // Copies written bytes into the extents.
  void Patch(uint64_t offset, std::span<const std::byte> bytes) {
    const uint64_t end = offset + bytes.size();
    for (auto at = FirstFrom(offset); at != extents_.end() && at->first < end; ++at) {
      const uint64_t from = std::max(at->first, offset);
      const uint64_t to = std::min(at->first + at->second.size, end);
      std::memcpy(at->second.buffer.data() + (from - at->first), bytes.data() + (from - offset), to - from);
    }
  }
  void Clear() { Drop(0, UINT64_MAX); }

  void Touch(Extents::iterator extent) { extent->second.last_use = ++clock_; }
  Extents::iterator end() { return extents_.end(); }
  size_t bytes() const { return bytes_; }

 private:
  Extents::iterator Remove(Extents::iterator extent) {
    bytes_ -= extent->second.size;
    pool_->Give(std::move(extent->second.buffer));
    return extents_.erase(extent);
  }
  // Evicts down to three quarters of the limit, so that not every Add visits all extents.
  void Shrink(Extents::iterator kept) {
    std::vector<Extents::iterator> oldest;
    for (auto at = extents_.begin(); at != extents_.end(); ++at) {
      if (at != kept) oldest.push_back(at);
    }
    std::ranges::sort(oldest, {}, [](const auto& extent) { return extent->second.last_use; });
    for (const auto& extent : oldest) {
      if (bytes_ <= limit_ / 4 * 3) break;
      Remove(extent);
    }
  }

  MemoryPool* const pool_;
  const size_t limit_;
  Extents extents_;
  size_t bytes_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace weightfs::hdf5
