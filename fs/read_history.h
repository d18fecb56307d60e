// SPDX-License-Identifier: Apache-2.0
// Which files are read again and again, so that the kernel's page cache is worth filling for them.
//
// A read past the page cache runs at the device's speed and leaves no pages behind: best for a file read once. A file
// that was read whole is opened through the page cache the next time; from then on its reads come from memory. Where
// the pages turn out to be gone by then (memory is short, somebody drops caches), the page cache only costs, and the
// file goes back to direct reads for a while.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "common/mutex.h"
#include "common/units.h"

namespace weightfs {

// Thread-safe. A small entry for an inode that was read whole and that the kernel still knows; of a bounded number.
class ReadHistory {
 public:
  // Whether an open for reading should go through the page cache.
  bool IsHot(InodeId ino, uint64_t size) EXCLUDES(mutex_);

  // A handle was closed. `read`: what the daemon was asked for through it; through the page cache that is what was not
  // in memory.
  void Closed(InodeId ino, uint64_t size, uint64_t read, bool page_cache) EXCLUDES(mutex_);

  // The kernel forgot the inode and its pages, or they were dropped.
  void Forget(InodeId ino) EXCLUDES(mutex_);

 private:
  struct Entry {
    bool filled = false;       // a reader has filled the page cache
    unsigned direct_next = 0;  // whole reads that go past the page cache before it is tried again
  };

  Mutex mutex_;
  std::unordered_map<InodeId, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
