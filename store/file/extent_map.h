// SPDX-License-Identifier: Apache-2.0
// Where the blocks of one file lie: the current mapping, and which of its records differ from the committed ones.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/units.h"
#include "engine/extent_allocator.h"
#include "meta/records.h"

namespace weightfs {

// Every entry is one record of the catalog, keyed by its first file block; entries never overlap and never exceed
// kMaximumExtentBlocks. Externally synchronised (Inode::mutex).
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
    std::optional<ExtentRecord> record;  // nullopt: the record goes
  };

  // A committed record, read at load. False when it overlaps one already there.
  bool Load(FileBlock first, const ExtentRecord& record);

  // The piece that begins at `first`, at most `limit` blocks long.
  Piece Lookup(FileBlock first, BlockCount limit) const;

  // Maps [first, first + run.count) to `run`; what was mapped there is appended to `freed`. Grows the extent before it
  // where the blocks continue it.
  void Map(FileBlock first, const DeviceRun& run, uint32_t flags, uint64_t generation, std::vector<DeviceRun>* freed);

  // Marks written the unwritten extents of a range that is one piece; its blocks stay where they are.
  void MarkWritten(FileBlock first, BlockCount count, uint64_t generation);

  // Unmaps the range.
  void Unmap(FileBlock first, BlockCount count, std::vector<DeviceRun>* freed);

  // The records that changed since the last call, for one commit.
  std::vector<Change> TakeChanges();
  bool changed() const { return !changed_.empty(); }

  BlockCount mapped() const { return mapped_; }
  size_t size() const { return extents_.size(); }
  const std::map<uint64_t, ExtentRecord>& extents() const { return extents_; }  // by first file block
  void Clear();

 private:
  // Makes `block` a border between entries.
  void SplitAt(uint64_t block);

  std::map<uint64_t, ExtentRecord> extents_;
  std::set<uint64_t> changed_;
  BlockCount mapped_;
};

}  // namespace weightfs
