// SPDX-License-Identifier: Apache-2.0
// How many places of files are being read in sequence.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "common/mutex.h"
#include "common/units.h"

namespace weightfs {

// Counts the different places among the last reads of streams: readers close behind each other in a file are at one
// place, and share what is read ahead. Thread-safe.
class StreamTracker {
 public:
  // A stream has read up to `offset`; how many places there are now, at least 1.
  uint64_t Note(InodeId ino, uint64_t offset) EXCLUDES(mutex_) {
    const Place place{ino.value, offset / kNear};
    MutexLock lock(mutex_);
    Place& oldest = recent_[next_++ % recent_.size()];
    if (const auto found = counts_.find(oldest); found != counts_.end() && --found->second == 0) counts_.erase(found);
    oldest = place;
    ++counts_[place];
    return counts_.size();
  }

 private:
  static constexpr uint64_t kNear = 64 * kMiB;
  static constexpr size_t kReads = 64;
  struct Place {
    uint64_t ino = 0, part = 0;
    bool operator==(const Place&) const = default;
  };
  struct Hash {
    size_t operator()(const Place& place) const { return place.ino * 0x9e3779b97f4a7c15 + place.part; }
  };

  Mutex mutex_;
  std::array<Place, kReads> recent_ GUARDED_BY(mutex_);  // no file has the inode number 0
  size_t next_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<Place, unsigned, Hash> counts_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
