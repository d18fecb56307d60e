// SPDX-License-Identifier: Apache-2.0
// Blocks allocated ahead of the files that are written in sequence.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/units.h"
#include "engine/extent_allocator.h"

namespace weightfs {

// Externally synchronized (SpaceManager::mutex_).
class Preallocations {
 public:
  struct Preallocation {
    DeviceId device;
    BlockRun rest;
    BlockCount next_size;
  };

  // The file's preallocation on the device; null if there is none.
  Preallocation* Find(InodeId ino, DeviceId device) {
    const auto found = files_.find(ino);
    if (found == files_.end()) return nullptr;
    const auto at = std::find_if(found->second.begin(), found->second.end(),
                                 [&](const Preallocation& candidate) { return candidate.device == device; });
    return at == found->second.end() ? nullptr : &*at;
  }
  Preallocation* Add(InodeId ino, DeviceId device) { return &files_[ino].emplace_back(Preallocation{device, {}, {}}); }

  // These return what they remove.
  std::vector<DeviceRun> Remove(InodeId ino) {
    std::vector<DeviceRun> runs;
    const auto found = files_.find(ino);
    if (found == files_.end()) return runs;
    for (const Preallocation& preallocation : found->second) runs.push_back({preallocation.device, preallocation.rest});
    files_.erase(found);
    return runs;
  }
  std::vector<DeviceRun> RemoveAll() {
    std::vector<DeviceRun> runs;
    for (const auto& [ino, list] : std::exchange(files_, {})) {
      for (const Preallocation& preallocation : list) runs.push_back({preallocation.device, preallocation.rest});
    }
    return runs;
  }

 private:
  std::unordered_map<InodeId, std::vector<Preallocation>> files_;
};

}  // namespace weightfs
