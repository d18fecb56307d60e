// SPDX-License-Identifier: Apache-2.0
// Blocks that lease holders read past the store: they keep their content, also when no file maps them any more.
#pragma once

#include <cstdint>
#include <vector>

#include "common/interval_map.h"
#include "common/units.h"
#include "engine/extent_allocator.h"

namespace weightfs {

// Externally synchronized (SpaceManager::mutex_). Blocks are pinned while a file maps them, so none is free.
class SpacePins {
 public:
  explicit SpacePins(size_t devices) : devices_(devices) {}

  // Adds one pin to each block of the run.
  void Add(const DeviceRun& run);
  // Removes one pin from each block of the run. Appends to `free` the parked blocks that have none left.
  void Remove(const DeviceRun& run, std::vector<DeviceRun>* free);
  // No file maps the run any more: appends its unpinned blocks to `free` and parks the others until their last pin
  // goes.
  void Park(const DeviceRun& run, std::vector<DeviceRun>* free);

  BlockCount pinned() const { return pinned_; }  // with at least one pin, parked ones included
  BlockCount parked() const { return parked_; }

 private:
  struct Pins {
    uint64_t count;
    bool parked;
  };
  using Blocks = IntervalMap<Pins>;  // of one device

  // The pins of the run's device, with borders at both ends of the run.
  Blocks& Split(const DeviceRun& run);

  std::vector<Blocks> devices_;
  BlockCount pinned_, parked_;
};

}  // namespace weightfs
