// SPDX-License-Identifier: Apache-2.0
// Blocks that lease holders read directly. They keep their content even when no file maps them any more.
#pragma once

#include <cstdint>
#include <vector>

#include "common/interval_map.h"
#include "common/units.h"
#include "engine/extent_allocator.h"

namespace weightfs {

// Externally synchronized (SpaceManager::mutex_). A block is pinned while a file maps it, so no pinned block is free.
class SpacePins {
 public:
  explicit SpacePins(size_t devices) : devices_(devices) {}

  // Adds one pin to each block of the run.
  void Add(const DeviceRun& run);
  // Removes one pin from each block of the run. Appends parked blocks without remaining pins to `free`.
  void Remove(const DeviceRun& run, std::vector<DeviceRun>* free);
  // Call this when no file maps the run any more. Appends unpinned blocks to `free` and parks the others until their
  // last pin is removed.
  void Park(const DeviceRun& run, std::vector<DeviceRun>* free);

  // The blocks of the run that have pins.
  BlockCount PinnedIn(const DeviceRun& run) const;
  BlockCount pinned() const { return pinned_; }  // with at least one pin, parked ones included
  BlockCount parked() const { return parked_; }

 private:
  struct Pins {
    uint64_t count;
    bool parked;
  };
  using Blocks = IntervalMap<Pins>;  // of one device

  // The pins of the run's device, split at both ends of the run.
  Blocks& Split(const DeviceRun& run);

  std::vector<Blocks> devices_;
  BlockCount pinned_, parked_;
};

}  // namespace weightfs
