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

// Thread-safe; allocation groups are locked one at a time, so that threads working on different files seldom meet.
class ExtentAllocator {
 public:
  struct Options {
    BlockRun space;                  // the allocatable blocks: all free at first
    BlockCount alignment{512};       // large runs start on a multiple of this (2 MiB)
    unsigned groups = 0;             // 0: chosen from the size, 1 to 64
  };

  struct Request {
    BlockCount count;                          // wanted; more than 0
    BlockCount minimum{1};                     // the shortest run worth returning
    std::optional<DeviceBlock> after;          // prefer the run that begins here (a file's last extent)
    bool aligned = false;                      // the run begins on `alignment`; without one of `minimum` blocks the
                                               // search falls back to unaligned runs
    unsigned group_hint = 0;                   // spreads unrelated files: taken modulo the number of groups
  };

  struct Statistics {
    BlockCount free;
    uint64_t free_extents = 0;
    BlockCount largest_free;
    ByteCount memory;                          // of the index
  };

  static Result<std::unique_ptr<ExtentAllocator>> Create(const Options& options);
  virtual ~ExtentAllocator() = default;

  // One run of between `minimum` and `count` blocks: the whole `count` wherever one is found within the bounded
  // search, else the longest seen. kNoSpace when no run of `minimum` is free anywhere. Never scans without bound.
  virtual Result<BlockRun> Allocate(const Request& request) = 0;

  // Takes exactly `run` out of the free space (mount-time rebuild). kCorrupt when any block of it is not free or
  // lies outside the space; then nothing changed.
  virtual Result<void> MarkUsed(BlockRun run) = 0;

  // Gives `run` back and merges it with its neighbours. Freeing free blocks is our own bug: it is reported
  // (kCorrupt) and changes nothing.
  virtual Result<void> Free(BlockRun run) = 0;

  virtual BlockCount free_blocks() const = 0;   // exact when no call is under way; O(1)
  virtual Statistics statistics() const = 0;
};

}  // namespace weightfs
