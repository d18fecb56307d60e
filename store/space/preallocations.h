// SPDX-License-Identifier: Apache-2.0
// Blocks allocated ahead of the files that are written in sequence.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/units.h"
#include "engine/extent_allocator.h"

namespace weightfs {

// Externally synchronized (SpaceManager::mutex_).
class Preallocations {
 public:
  struct Preallocation {
    BlockRun rest;
    BlockCount next_size;
  };

  // The file's preallocation on the device; null if there is none.
  Preallocation* Find(InodeId ino, DeviceId device) {
    const auto found = files_.find({ino, device});
    return found == files_.end() ? nullptr : &found->second;
  }
  Preallocation* Add(InodeId ino, DeviceId device) { return &files_[{ino, device}]; }

  // These return what they remove.
  std::vector<DeviceRun> Remove(InodeId ino) {
    return Remove(files_.lower_bound({ino, DeviceId{}}), files_.upper_bound({ino, DeviceId{UINT16_MAX}}));
  }
  std::vector<DeviceRun> RemoveAll() { return Remove(files_.begin(), files_.end()); }

 private:
  using Files = std::map<std::pair<InodeId, DeviceId>, Preallocation>;

  std::vector<DeviceRun> Remove(Files::iterator begin, Files::iterator end) {
    std::vector<DeviceRun> runs;
    for (auto file = begin; file != end; ++file) runs.push_back({file->first.second, file->second.rest});
    files_.erase(begin, end);
    return runs;
  }

  Files files_;
};

}  // namespace weightfs
