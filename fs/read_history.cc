// SPDX-License-Identifier: Apache-2.0
#include "fs/read_history.h"

#include "common/machine_memory.h"

namespace weightfs {
namespace {

constexpr size_t kMostEntries = 65536;    // beyond this, an arbitrary entry is evicted
constexpr unsigned kDirectAfterMiss = 8;  // number of direct whole reads after a miss in the page cache

}  // namespace

bool ReadHistory::IsHot(InodeId ino, uint64_t size) {
  {
    MutexLock lock(mutex_);
    const auto entry = entries_.find(ino);
    if (entry == entries_.end() || entry->second.direct_next > 0) return false;
    if (entry->second.filled) return true;
  }
  return size <= AvailableMemory().value / 2;
}

void ReadHistory::Closed(InodeId ino, uint64_t size, uint64_t read, bool page_cache) {
  if (size == 0) return;
  const bool most = read >= size - size / 4;
  MutexLock lock(mutex_);
  if (!page_cache) {
    if (!most) return;
    if (entries_.size() >= kMostEntries && !entries_.contains(ino)) entries_.erase(entries_.begin());
    Entry& entry = entries_[ino];
    if (entry.direct_next > 0) --entry.direct_next;
    return;
  }
  const auto found = entries_.find(ino);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  if (read < size / 2) {
    entry.filled = true;  // most of it was cached, or little was read
  } else if (entry.filled) {
    entry = {.filled = false, .direct_next = kDirectAfterMiss};
  } else {
    entry.filled = true;
  }
}

void ReadHistory::Forget(InodeId ino) {
  MutexLock lock(mutex_);
  entries_.erase(ino);
}

}  // namespace weightfs
