// SPDX-License-Identifier: Apache-2.0
// Dirty bytes that are not in the file yet, in segments that grow with sequential writes.
#pragma once

#include <map>

#include "client/operation.h"
#include "common/error.h"
#include "hdf5/memory_pool.h"

namespace weightfs::hdf5 {

// Externally synchronized. Segments never overlap. All offsets are bytes of the file.
class WriteBuffer {
 public:
  struct Segment {
    MemoryPool::Buffer buffer;
    size_t skip = 0;                               // unused bytes at the start of the buffer
    size_t size = 0;                               // bytes
    bool raw = false;                              // data of datasets; otherwise metadata of HDF5
    std::shared_ptr<client::Operation> operation;  // the write-back; the bytes must not change meanwhile

    std::byte* data() const { return buffer.data() + skip; }
  };
  using Segments = std::map<uint64_t, Segment>;  // by the offset of the first byte

  // Segments grow up to `segment_size` bytes, a multiple of 4 KiB.
  WriteBuffer(MemoryPool* pool, size_t segment_size) : pool_(pool), segment_size_(segment_size) {}

  // Buffers a copy of the bytes. Their range must not be busy. ENOMEM: only some of the bytes are buffered.
  Result<void> Put(uint64_t offset, std::span<const std::byte> bytes, bool raw);
  // Discards the bytes of the range, which must not be busy. ENOMEM: nothing has changed.
  Result<void> Discard(uint64_t begin, uint64_t end);
  // Copies the buffered bytes of the range into `bytes`. Returns how many.
  size_t Overlay(uint64_t offset, std::span<std::byte> bytes) const;
  // True while a write-back is in progress in the range.
  bool IsBusy(uint64_t begin, uint64_t end) const;
  // True if the segment cannot grow any more.
  bool IsFull(uint64_t begin, const Segment& segment) const { return segment.size >= LongestFrom(begin); }
  // Returns true once after a segment became full.
  bool TakeFilled() { return std::exchange(filled_, false); }
  // Removes a segment that has been written to the file.
  Segments::iterator Remove(Segments::iterator segment);

  size_t segment_size() const { return segment_size_; }
  bool empty() const { return segments_.empty(); }
  size_t bytes() const { return bytes_; }
  uint64_t end() const;  // end of the last segment; 0 when empty
  Segments& segments() { return segments_; }
  const Segments& segments() const { return segments_; }

 private:
  size_t LongestFrom(uint64_t begin) const;
  Result<void> Reserve(uint64_t begin, Segment* segment, size_t size);

  MemoryPool* const pool_;
  const size_t segment_size_;
  Segments segments_;
  size_t bytes_ = 0;
  bool filled_ = false;
};

}  // namespace weightfs::hdf5
