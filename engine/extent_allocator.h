// SPDX-License-Identifier: Apache-2.0
// The free space of one device, held in memory and rebuilt from the extents at mount.
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

// A run of blocks on a given device.
struct DeviceRun {
  DeviceId device;
  BlockRun run;
};

inline BlockCount BlocksOf(const std::vector<DeviceRun>& runs) {
  BlockCount count;
  for (const DeviceRun& run : runs) count += run.run.count;
  return count;
}

// Thread-safe. The space is divided into allocation groups, each with its own lock, so that threads that work on
// different files rarely contend. Allocate prefers a group that no other thread is using. A call holds one lock at a
// time; only MarkUsed and Free of a run across a boundary lock all of its groups, in address order. An allocated run
// never crosses a group boundary, but a file's extents may: `after` at the end of one group continues in the next.
class ExtentAllocator {
 public:
  struct Options {
    BlockRun space;             // the allocatable blocks, all initially free; not empty
    BlockCount alignment{512};  // large runs start on a multiple of this (2 MiB); a power of two, at most 2^16
    unsigned groups = 0;        // maximum number; 0: chosen from the size, 1 to 64
  };

  struct Request {
    BlockCount count;                  // requested; more than 0
    BlockCount minimum{1};             // the shortest useful run; at most `count`
    std::optional<DeviceBlock> after;  // prefer the run that begins here (after a file's last extent)
    bool aligned = false;              // start the run on `alignment`. The search falls back
                                       // to unaligned runs if no aligned run has `minimum`
                                       // blocks, and one alignment unit unless `count` is less
    unsigned group_hint = 0;           // spreads unrelated files; used modulo the number of groups
  };

  struct Statistics {
    BlockCount free;
    uint64_t free_extents = 0;
    BlockCount largest_free;
    ByteCount memory;  // memory of the index
  };

  // Returns kInvalid for an empty or overflowing space, an alignment or number of groups out of range, or groups of
  // more than 2^32 - 1 blocks (16 TiB).
  static Result<std::unique_ptr<ExtentAllocator>> Create(const Options& options);
  virtual ~ExtentAllocator() = default;

  // Returns one run of between `minimum` and `count` blocks. Prefers the run at `after`, aligned or not and even if it
  // is shorter than `count`: it extends the file's last extent, so it causes no fragmentation. (For an aligned request,
  // such a shorter run ends on the alignment.) Otherwise returns all `count` blocks if any group has such a run, else
  // the longest run. Returns kNoSpace when no run of `minimum` blocks is free. The search is always bounded.
  virtual Result<BlockRun> Allocate(const Request& request) = 0;

  // Marks exactly `run` as used, for the rebuild at mount. Returns kCorrupt, and changes nothing, when any block is not
  // free or lies outside the space. An empty run changes nothing, here and in Free. Runs in ascending order cost a
  // quarter of runs in random order, including the time to sort them.
  virtual Result<void> MarkUsed(BlockRun run) = 0;

  // Frees `run` and merges it with its neighbors. Freeing free blocks is a bug of the caller: it returns kCorrupt and
  // changes nothing.
  virtual Result<void> Free(BlockRun run) = 0;

  virtual Statistics statistics() const = 0;  // exact when no call is in progress
};

}  // namespace weightfs
