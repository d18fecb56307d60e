// SPDX-License-Identifier: Apache-2.0
// The extents of one file: the current mapping, and the records that differ from the committed ones.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include "common/interval_map.h"
#include "common/units.h"
#include "engine/extent_allocator.h"
#include "meta/records.h"
#include "store/types.h"

namespace weightfs {

// Each range of the map is one record of the catalog, keyed by its first file block. Ranges never overlap and never
// exceed kMaximumExtentBlocks. Externally synchronized (Inode::mutex).
class ExtentMap {
 public:
  struct Piece {
    FileBlock first;
    BlockCount count;
    std::optional<ExtentRecord> extent;  // of this piece: `start` is the location of `first`; nullopt: a hole
    bool IsWritten() const { return extent && (extent->flags & kExtentUnwritten) == 0; }
  };
  // A record to write, or the records with these keys to delete.
  struct Change {
    FileBlock key;
    FileBlock end;  // the key after the last one
    std::optional<ExtentRecord> record;
  };

  // Adds a committed record. Returns false, and changes nothing, when it overlaps an existing one.
  bool Load(FileBlock first, const ExtentRecord& record);

  // The piece that begins at `first`, limited to `limit` blocks.
  Piece Lookup(FileBlock first, BlockCount limit) const;
  // Calls visit(piece) for every piece of [first, end) in order, holes included, until it returns false.
  template <typename Visit>
  void ForEachPiece(FileBlock first, FileBlock end, const Visit& visit) const {
    while (first < end) {
      const Piece piece = Lookup(first, end - first);
      if (!visit(piece)) return;
      first += piece.count;
    }
  }

  // Maps [first, first + run.count) to `run` and appends the blocks mapped there before to `freed`. Extends the
  // preceding extent when the blocks continue it.
  void Map(FileBlock first, const DeviceRun& run, uint32_t flags, uint64_t generation, std::vector<DeviceRun>* freed);

  // Marks an unwritten range as written. The range must be one piece; its blocks stay where they are.
  void MarkWritten(FileBlock first, BlockCount count, uint64_t generation);

  // Unmaps the range and appends the blocks mapped there to `freed`.
  void Unmap(FileBlock first, BlockCount count, std::vector<DeviceRun>* freed);

  // Returns the records that changed since the last call, for one commit, in order. A long run of deleted records is
  // one change.
  std::vector<Change> TakeChanges();

  // Returns at most `limit` records in order, starting with the one that ends after `first`.
  std::vector<FileExtent> List(FileBlock first, size_t limit) const;

  BlockCount mapped() const { return mapped_; }
  size_t size() const { return extents_.size(); }
  size_t changes() const { return changed_.size(); }  // since TakeChanges
  void Clear();

 private:
  struct Address {
    DeviceBlock start;
    uint64_t generation;
    uint32_t flags;
    DeviceId device;
    void Advance(uint64_t blocks) { start += BlockCount{blocks}; }
    ExtentRecord ToRecord(uint64_t blocks) const { return {device, start, {blocks}, flags, generation}; }
  };

  // Makes `block` a boundary between records.
  void SplitAt(uint64_t block);

  IntervalMap<Address> extents_;
  std::set<uint64_t> changed_;  // keys of records
  BlockCount mapped_;
};

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
