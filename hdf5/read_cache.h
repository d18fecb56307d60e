// SPDX-License-Identifier: Apache-2.0
// Parts of a file in memory for reading: pages of metadata, and windows of read-ahead that may still be on their way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "client/operation.h"
#include "hdf5/memory_pool.h"

namespace weightfs::hdf5 {

// Externally synchronized. Extents never overlap. One that is loaded holds what the program sees of the file, buffered
// writes included.
class ReadCache {
 public:
  struct Extent {
    MemoryPool::Buffer buffer;
    size_t size = 0;  // bytes
    uint64_t last_use = 0;
    std::shared_ptr<client::Operation> operation;  // reads it from the file; null once that is done
  };
  using Extents = std::map<uint64_t, Extent>;  // by the offset of their first bytes

  ReadCache(MemoryPool* pool, size_t limit) : pool_(pool), limit_(limit) {}
  ~ReadCache() { Clear(); }
  ReadCache(const ReadCache&) = delete;
  ReadCache& operator=(const ReadCache&) = delete;

  // The extent that holds the byte at `offset`; end() when there is none.
  Extents::iterator Find(uint64_t offset);
  // The first extent that ends behind `offset`.
  Extents::iterator FirstFrom(uint64_t offset);
  // Where the last extent ends that lies before the byte at `offset`; 0 when there is none.
  uint64_t EndBefore(uint64_t offset) const;
  // Adds an extent whose range nobody has. The least recently used ones go where they exceed the limit.
  Extents::iterator Add(uint64_t begin, Extent extent);
  // Takes an extent out; waits for what loads it.
  Extents::iterator Remove(Extents::iterator extent);
  // Takes out whatever has a byte of the range.
  void Drop(uint64_t begin, uint64_t end);
  // Copies bytes that were written over the loaded ones. Nothing of the range may be on its way.
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
