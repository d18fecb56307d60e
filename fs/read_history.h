// SPDX-License-Identifier: Apache-2.0
// Detects files that are read repeatedly, for which filling the kernel's page cache pays off.
//
// A read that bypasses the page cache runs at the device's speed and leaves no pages behind, which is best for a file
// read once. A file that was read completely is opened through the page cache the next time, and later reads come from
// memory. If its pages are gone by then (under memory pressure, or because caches were dropped), the page cache only
// costs time, and the file goes back to direct reads for a while.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "common/mutex.h"
#include "common/units.h"

namespace weightfs {

// Thread-safe. Keeps a small entry for each inode that was read completely and that the kernel still knows, up to a
// limit.
class ReadHistory {
 public:
  // True when an open for reading should use the page cache.
  bool IsHot(InodeId ino, uint64_t size) EXCLUDES(mutex_);

  // Call this when a handle is closed. `read`: the bytes read from the daemon through it; with the page cache these are
  // the bytes that were not in memory.
  void Closed(InodeId ino, uint64_t size, uint64_t read, bool page_cache) EXCLUDES(mutex_);

  // Call this when the kernel forgot the inode and its pages, or dropped them.
  void Forget(InodeId ino) EXCLUDES(mutex_);

 private:
  struct Entry {
    bool filled = false;       // a reader has filled the page cache
    unsigned direct_next = 0;  // number of direct whole reads before the page cache is tried again
  };

  Mutex mutex_;
  std::unordered_map<InodeId, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
