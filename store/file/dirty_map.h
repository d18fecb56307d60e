// SPDX-License-Identifier: Apache-2.0
// Blocks of one file that are in memory and not (known to be) on the device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "common/units.h"
#include "io/buffer.h"

namespace weightfs {

// Blocks [key, key + count) of the file, held in `buffer`, whose memory begins at file block `window`.
struct DirtySpan {
  BlockCount count;
  Buffer buffer;
  FileBlock window;
  uint64_t write = 0;  // 0: may still change; otherwise the id of the device write that reads this memory
  uint64_t window_limit = UINT64_MAX;  // the window ends before this file block, where the buffer goes on

  std::byte* memory(uint64_t block) const { return buffer.data() + (block - window.value) * kBlockSize; }
  // The first file block behind the window.
  uint64_t window_end() const { return std::min(window_limit, window.value + buffer.size().value / kBlockSize); }
  bool frozen() const { return write != 0; }
};

// Spans never overlap. A buffer serves one window of the file; its spans are frozen all at once (WindowOf), so that no
// block of memory that a device write reads is ever written again. Externally synchronised (Inode::mutex).
class DirtyMap {
 public:
  using Spans = std::map<uint64_t, DirtySpan>;  // by first file block

  // The span that covers `block`, or null.
  const DirtySpan* Find(FileBlock block) const;

  // Adds a span; what it covers of older ones goes. Merges with unfrozen neighbours in the same buffer.
  void Insert(FileBlock first, DirtySpan span);

  // Forgets the blocks of a range; writes under way keep their memory.
  void Remove(FileBlock first, BlockCount count);

  // Forgets the blocks of [first, first + count) that still belong to the device write `write`.
  void RemoveWrite(FileBlock first, BlockCount count, uint64_t write);

  // Marks [first, first + count), which must be whole unfrozen spans or parts of them, as read by `write`.
  void Freeze(FileBlock first, BlockCount count, uint64_t write);

  // Memory for the unfrozen block `block` and the unfrozen ones behind it in the same span; empty when it is not one.
  std::span<std::byte> Writable(FileBlock block) const;

  // A buffer with an unfrozen span whose window holds `block`, or null: the block may live there.
  const DirtySpan* WindowFor(FileBlock block) const;

  // Whether every block of the range is here and may still change.
  bool CoversUnfrozen(FileBlock first, BlockCount count) const;

  // Whether any block of the range is here.
  bool Overlaps(FileBlock first, BlockCount count) const;

  // The first span that ends behind `block`.
  Spans::const_iterator FirstFrom(FileBlock block) const;
  const Spans& spans() const { return spans_; }
  BlockCount unfrozen() const { return unfrozen_; }
  bool empty() const { return spans_.empty(); }
  void Clear();

 private:
  void SplitAt(uint64_t block);
  void MergeAround(Spans::iterator at);

  Spans spans_;
  BlockCount unfrozen_;
};

}  // namespace weightfs
