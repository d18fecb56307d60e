// SPDX-License-Identifier: Apache-2.0
// Blocks that holders of leases read past the store: they keep what they hold, also when no file has them any more.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/units.h"
#include "engine/extent_allocator.h"

namespace weightfs {

// Externally synchronised (SpaceManager::mutex_). Blocks are pinned while they are mapped, so none is free.
class SpacePins {
 public:
  explicit SpacePins(size_t devices) : devices_(devices) {}

  // One pin more on each block of the run.
  void Add(const DeviceRun& run);
  // One pin less. Appends to `free` the parked blocks that have none left.
  void Remove(const DeviceRun& run, std::vector<DeviceRun>* free);
  // The run is to be free: appends what nobody has pinned to `free` and parks the rest until its last pin goes.
  void Park(const DeviceRun& run, std::vector<DeviceRun>* free);

  BlockCount pinned() const { return pinned_; }  // with at least one pin, parked ones included
  BlockCount parked() const { return parked_; }

 private:
  struct Span {
    uint64_t end;  // the first block behind it
    uint64_t pins;
    bool parked;
  };
  using Spans = std::map<uint64_t, Span>;  // by first block; they never overlap

  // Makes `block` a border between spans.
  static void SplitAt(Spans& spans, uint64_t block);

  std::vector<Spans> devices_;
  BlockCount pinned_, parked_;
};

}  // namespace weightfs
