// SPDX-License-Identifier: Apache-2.0
// Free space of one device, held in memory and rebuilt from the extents at mount.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// A run of blocks on one device.
struct BlockRun {
  DeviceBlock start;
  BlockCount count;
  constexpr DeviceBlock end() const { return start + count; }
  constexpr bool operator==(const BlockRun&) const = default;
};

// A run of blocks on a named device.
struct DeviceRun {
  DeviceId device;
  BlockRun run;
};

// Thread-safe. The space is cut into allocation groups, each with its own lock, so that threads working on
// different files seldom meet; Allocate prefers a group that nobody is busy in. A call holds one lock at a time; only
// MarkUsed and Free of a run over a border hold those of all its groups, taken in order of address. A run never
// crosses a border, but a file's extents may: `after` at the end of one group goes on in the next.
class ExtentAllocator {
 public:
  struct Options {
    BlockRun space;             // the allocatable blocks: all free at first; not empty
    BlockCount alignment{512};  // large runs start on a multiple of this (2 MiB); a power of two, at most 2^16
    unsigned groups = 0;        // at most so many; 0: chosen from the size, 1 to 64
  };

  struct Request {
    BlockCount count;                  // wanted; more than 0
    BlockCount minimum{1};             // the shortest run worth returning; at most `count`
    std::optional<DeviceBlock> after;  // prefer the run that begins here (a file's last extent)
    bool aligned = false;              // the run begins on `alignment`; without an aligned one of `minimum`
                                       // blocks, and of one alignment unless `count` is less, the search
                                       // falls back to unaligned runs
    unsigned group_hint = 0;           // spreads unrelated files: taken modulo the number of groups
  };

  struct Statistics {
    BlockCount free;
    uint64_t free_extents = 0;
    BlockCount largest_free;
    ByteCount memory;  // of the index
  };

  // kInvalid for an empty or overflowing space, an alignment or a number of groups out of range, or groups of
  // more than 2^32 - 1 blocks (16 TiB).
  static Result<std::unique_ptr<ExtentAllocator>> Create(const Options& options);
  virtual ~ExtentAllocator() = default;

  // One run of between `minimum` and `count` blocks. The run at `after` comes first, aligned or not and even if it
  // is shorter than `count`: it lengthens the file's last extent, so it costs no fragment. (Of an aligned request
  // such a shorter run ends on the alignment.) Otherwise the whole `count` wherever one is free, else the
  // longest. kNoSpace when no run of `minimum` is free anywhere. Never scans without bound.
  virtual Result<BlockRun> Allocate(const Request& request) = 0;

  // Takes exactly `run` out of the free space (mount-time rebuild). kCorrupt when any block of it is not free or
  // lies outside the space; then nothing changed. An empty run is no change, here and in Free.
  // Runs in ascending order cost a quarter of those in random order, the sorting included.
  virtual Result<void> MarkUsed(BlockRun run) = 0;

  // Gives `run` back and merges it with its neighbors. Freeing free blocks is our own bug: it is reported
  // (kCorrupt) and changes nothing.
  virtual Result<void> Free(BlockRun run) = 0;

  virtual BlockCount free_blocks() const = 0;  // exact when no call is under way; O(1)
  virtual Statistics statistics() const = 0;
};

}  // namespace weightfs
