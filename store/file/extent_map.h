// SPDX-License-Identifier: Apache-2.0
// Where the blocks of one file lie: the current mapping, and which of its records differ from the committed ones.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "common/interval_map.h"
#include "common/units.h"
#include "engine/extent_allocator.h"
#include "meta/records.h"
#include "store/types.h"

namespace weightfs {

// Every range of the map is one record of the catalog, keyed by its first file block; ranges never overlap and never
// exceed kMaximumExtentBlocks. Externally synchronized (Inode::mutex).
class ExtentMap {
 public:
  struct Piece {
    FileBlock first;
    BlockCount count;
    std::optional<ExtentRecord> extent;  // of this piece: `start` is where `first` lies; nullopt is a hole
    bool IsWritten() const { return extent && (extent->flags & kExtentUnwritten) == 0; }
  };
  struct Change {
    FileBlock key;
    std::optional<ExtentRecord> record;  // nullopt: the record is to be deleted
  };

  // Adds a committed record. False (and no change) when it overlaps one already there.
  bool Load(FileBlock first, const ExtentRecord& record);

  // The piece that begins at `first`, at most `limit` blocks long.
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

  // Maps [first, first + run.count) to `run`; what was mapped there is appended to `freed`. Grows the extent before it
  // where the blocks continue it.
  void Map(FileBlock first, const DeviceRun& run, uint32_t flags, uint64_t generation, std::vector<DeviceRun>* freed);

  // Marks written the unwritten extents of a range that is one piece; its blocks stay where they are.
  void MarkWritten(FileBlock first, BlockCount count, uint64_t generation);

  // Unmaps the range; what was mapped there is appended to `freed`.
  void Unmap(FileBlock first, BlockCount count, std::vector<DeviceRun>* freed);

  // The records that changed since the last call, for one commit.
  std::vector<Change> TakeChanges();

  // At most `limit` records in order, from the one that ends behind `first`.
  std::vector<FileExtent> List(FileBlock first, size_t limit) const;

  BlockCount mapped() const { return mapped_; }
  size_t size() const { return extents_.size(); }
  void Clear();

 private:
  struct Address {
    DeviceId device;
    DeviceBlock start;
    uint32_t flags;
    uint64_t generation;
    void Advance(uint64_t blocks) { start += BlockCount{blocks}; }
    ExtentRecord ToRecord(uint64_t blocks) const { return {device, start, {blocks}, flags, generation}; }
  };

  // Makes `block` a border between records.
  void SplitAt(uint64_t block);

  IntervalMap<Address> extents_;
  std::set<uint64_t> changed_;  // keys of records
  BlockCount mapped_;
};

}  // namespace weightfs
