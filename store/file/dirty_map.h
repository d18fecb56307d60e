// SPDX-License-Identifier: Apache-2.0
// Blocks of one file whose data is in memory and not known to be on the device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "common/interval_map.h"
#include "common/units.h"
#include "io/buffer.h"

namespace weightfs {

// Memory for a range of file blocks. The buffer holds the file blocks from `buffer_first` up to buffer_end(), and the
// range is a part of these.
struct DirtyBlocks {
  Buffer buffer;
  FileBlock buffer_first;
  uint64_t buffer_limit = UINT64_MAX;  // the file's part of the buffer ends before this file block
  uint64_t write = 0;                  // id of the device write that reads the memory; 0: none, the blocks may change

  std::byte* memory(uint64_t block) const { return buffer.data() + (block - buffer_first.value) * kBlockSize; }
  uint64_t buffer_end() const { return std::min(buffer_limit, buffer_first.value + buffer.size().value / kBlockSize); }
  bool under_writeback() const { return write != 0; }
};

// A block is dirty (it may change) or under writeback (a device write reads its memory, so nobody changes it). All
// dirty blocks of one buffer enter writeback together, so that memory read by a device write is never modified again.
// Externally synchronized (Inode::mutex).
class DirtyMap {
 public:
  using Ranges = IntervalMap<DirtyBlocks>;

  // Adds a range, dirty or under writeback, and replaces the map's blocks there. Joins it with dirty neighbors in the
  // same buffer.
  void Insert(FileBlock first, BlockCount count, DirtyBlocks blocks);

  // Removes the blocks of a range. Writes in progress keep their memory.
  void Remove(FileBlock first, BlockCount count);

  // Removes the blocks of a range that still belong to the device write `write`.
  void RemoveWrite(FileBlock first, BlockCount count, uint64_t write);

  // Marks a range as under writeback by `write`, which is not 0. The whole range must be dirty.
  void StartWriteback(FileBlock first, BlockCount count, uint64_t write);

  // The blocks at `block`, or null when there are none.
  const DirtyBlocks* Find(FileBlock block) const;

  // Memory of the dirty block `block` and of the dirty blocks after it in the same range; empty when `block` is not
  // dirty.
  std::span<std::byte> Writable(FileBlock block) const;

  // Dirty blocks next to `block` whose buffer has space for it, or null.
  const DirtyBlocks* BufferFor(FileBlock block) const;

  // True when every block of the range is dirty.
  bool IsDirty(FileBlock first, BlockCount count) const;
  // Overlaps: true when a block of the range is in the map. HasWriteback: true when one is under writeback by a write
  // before `next`.
  bool Overlaps(FileBlock first, BlockCount count) const;
  bool HasWriteback(FileBlock first, BlockCount count, uint64_t next) const;

  // Every range, in order, keyed by its first block.
  const Ranges& ranges() const { return ranges_; }
  // The first range that ends after `block`.
  Ranges::const_iterator FirstFrom(FileBlock block) const { return ranges_.FirstFrom(block.value); }

  BlockCount dirty() const { return dirty_; }
  void Clear();

 private:
  Ranges ranges_;
  BlockCount dirty_;
};

}  // namespace weightfs
