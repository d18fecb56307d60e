// Which inodes have pages in the kernel that must not outlive a direct write, or that the store must have first.
//
// Where the kernel cannot map files opened for direct I/O (before Linux 6.6), some opens go through its page cache and
// some past it. A write past it leaves the pages of the other opens stale, so the daemon tells the kernel to drop them
// before it answers that write. With mappings of direct I/O files the kernel does all of this itself.
#pragma once

#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "common/units.h"

namespace weightfs {

// Thread-safe.
class PageCacheTracker {
 public:
  // An open through the page cache begins. True when the pages that the kernel may still have of the inode are what
  // the store holds, so that they may be kept.
  bool Open(InodeId ino) EXCLUDES(mutex_);
  void Close(InodeId ino) EXCLUDES(mutex_);

  // The store's data of `ino` was changed past the page cache. True when an open through it exists: the caller
  // invalidates the range in the kernel before anybody is told of the change.
  bool ChangedPastCache(InodeId ino) EXCLUDES(mutex_);

  // Opens that allow a shared writable mapping, and whether there is one. A mapping keeps its open alive.
  void OpenMappable(InodeId ino) EXCLUDES(mutex_);
  void CloseMappable(InodeId ino) EXCLUDES(mutex_);
  bool MayHoldChanges(InodeId ino) EXCLUDES(mutex_);
  std::vector<InodeId> AllThatMayHoldChanges() EXCLUDES(mutex_);

  // The kernel dropped the inode, and its pages with it.
  void Forget(InodeId ino) EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  // Opens through the page cache. An entry of 0 opens says: pages left in the kernel are good.
  std::unordered_map<InodeId, unsigned> opens_ GUARDED_BY(mutex_);
  std::unordered_map<InodeId, unsigned> mappable_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
