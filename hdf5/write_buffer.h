// SPDX-License-Identifier: Apache-2.0
// Bytes that were written and are not in the file yet: segments in memory that sequential writes make long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "client/operation.h"
#include "common/error.h"
#include "hdf5/memory_pool.h"

namespace weightfs::hdf5 {

// Externally synchronized. Segments never overlap. All offsets are bytes of the file.
class WriteBuffer {
 public:
  struct Segment {
    MemoryPool::Buffer buffer;
    size_t skip = 0;                               // bytes of the buffer before the first that counts
    size_t size = 0;                               // bytes
    bool raw = false;                              // data of datasets; otherwise metadata of HDF5
    std::shared_ptr<client::Operation> operation;  // writes it to the file; its bytes may not be changed meanwhile

    std::byte* data() const { return buffer.data() + skip; }
  };
  using Segments = std::map<uint64_t, Segment>;  // by the offset of their first bytes

  // Segments grow up to `segment_size` bytes, a multiple of 4 KiB.
  WriteBuffer(MemoryPool* pool, size_t segment_size) : pool_(pool), segment_size_(segment_size) {}

  // Copies the bytes. Nothing may be under way in their range. ENOMEM: some of them are missing.
  Result<void> Put(uint64_t offset, std::span<const std::byte> bytes, bool raw);
  // Forgets what is in the range. Nothing may be under way there. ENOMEM: all is as it was.
  Result<void> Discard(uint64_t begin, uint64_t end);
  // Copies the bytes of the range that are here over those in `bytes`. Returns how many.
  size_t Overlay(uint64_t offset, std::span<std::byte> bytes) const;
  // True when a write to the file is under way in the range.
  bool IsBusy(uint64_t begin, uint64_t end) const;
  // True when the segment cannot grow any more.
  bool IsFull(uint64_t begin, const Segment& segment) const { return segment.size >= LongestFrom(begin); }
  // True once after a segment became full.
  bool TakeFilled() { return std::exchange(filled_, false); }
  // Forgets a segment that is in the file now.
  Segments::iterator Remove(Segments::iterator segment);

  bool empty() const { return segments_.empty(); }
  size_t bytes() const { return bytes_; }
  uint64_t end() const;  // behind the last byte; 0 when empty
  Segments& segments() { return segments_; }
  const Segments& segments() const { return segments_; }

 private:
  Segments::const_iterator FirstFrom(uint64_t offset) const;
  size_t LongestFrom(uint64_t begin) const;
  Result<void> MakeRoom(Segment* segment, size_t size, size_t longest);

  MemoryPool* const pool_;
  const size_t segment_size_;
  Segments segments_;
  size_t bytes_ = 0;
  bool filled_ = false;
};

}  // namespace weightfs::hdf5
