// SPDX-License-Identifier: Apache-2.0
// Counts the file locations that are being read in sequence.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "common/mutex.h"
#include "common/units.h"

namespace weightfs {

// Counts the different locations among the last reads of streams. Readers close to each other in a file share one
// location and its read-ahead. Thread-safe.
class StreamTracker {
 public:
  // Records that a stream has read up to `offset`. Returns the current number of locations, at least 1.
  uint64_t Note(InodeId ino, uint64_t offset) EXCLUDES(mutex_) {
    const Location location{ino.value, offset / kNear};
    MutexLock lock(mutex_);
    Location& oldest = recent_[next_++ % recent_.size()];
    if (const auto found = counts_.find(oldest); found != counts_.end() && --found->second == 0) counts_.erase(found);
    oldest = location;
    ++counts_[location];
    return counts_.size();
  }

 private:
  static constexpr uint64_t kNear = 64 * kMiB;
  static constexpr size_t kReads = 64;
  struct Location {
    uint64_t ino = 0, part = 0;
    bool operator==(const Location&) const = default;
  };
  struct Hash {
    size_t operator()(const Location& location) const { return location.ino * 0x9e3779b97f4a7c15 + location.part; }
  };

  Mutex mutex_;
  std::array<Location, kReads> recent_ GUARDED_BY(mutex_);  // no file has the inode number 0
  size_t next_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<Location, unsigned, Hash> counts_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
