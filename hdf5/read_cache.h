// SPDX-License-Identifier: Apache-2.0
// Cached extents of a file: pages of metadata, and read-ahead windows.
#pragma once

#include <map>
#include <span>

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
  Extents::iterator Find(uint64_t offset);
  // Returns the first extent that ends after `offset`, or end().
  Extents::iterator FirstFrom(uint64_t offset);
  // Returns the end of the last extent before the byte at `offset`, or 0.
  uint64_t EndBefore(uint64_t offset) const;
  // Adds an extent that overlaps no other. Evicts the least recently used extents if the cache exceeds its limit.
  Extents::iterator Add(uint64_t begin, Extent extent);
  // Removes an extent.
  Extents::iterator Remove(Extents::iterator extent);
  // Removes all extents that overlap the range.
  void Drop(uint64_t begin, uint64_t end);
  // Copies written bytes into the extents.
  void Patch(uint64_t offset, std::span<const std::byte> bytes);
  void Clear() { Drop(0, UINT64_MAX); }

  void Touch(Extents::iterator extent) { extent->second.last_use = ++clock_; }
  Extents::iterator end() { return extents_.end(); }
  bool empty() const { return extents_.empty(); }
  size_t bytes() const { return bytes_; }

 private:
  void Shrink(Extents::iterator kept);

  MemoryPool* const pool_;
  const size_t limit_;
  Extents extents_;
  size_t bytes_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace weightfs::hdf5
