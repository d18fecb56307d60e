// SPDX-License-Identifier: Apache-2.0
// The inodes in memory, and the kernel's lookup count of each.
#pragma once

#include <array>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "meta/kv_store.h"
#include "store/file/file.h"
#include "store/file/inode.h"

namespace weightfs {

// Thread-safe. Keeps about `resident` inodes in memory, and kExtentsPerInode extents for each, plus all inodes that are
// referenced and their extents. The others are in the catalog.
class InodeTable {
 public:
  static constexpr size_t kExtentsPerInode = 32;

  InodeTable(KvStore& catalog, const FileServices& services, size_t resident)
      : catalog_(catalog), services_(services), resident_(resident) {}

  // Returns the inode; loads it from the catalog if needed. Returns kStale when it does not exist, kCorrupt when its
  // record is damaged.
  Result<InodePtr> Get(InodeId ino) EXCLUDES(mutex_);

  // Returns the inode if it is in memory, else null.
  InodePtr Find(InodeId ino) EXCLUDES(mutex_);

  // Adds a new inode whose record is, or is about to be, in the catalog.
  InodePtr Insert(InodeId ino, InodeRecord record) EXCLUDES(mutex_);

  // Removes a deleted inode, so that Get returns kStale.
  void Erase(InodeId ino) EXCLUDES(mutex_);

  // Lookups that the kernel holds (FUSE). DropLookups returns how many remain.
  void AddLookups(InodeId ino, uint64_t count) EXCLUDES(mutex_);
  uint64_t DropLookups(InodeId ino, uint64_t count) EXCLUDES(mutex_);
  uint64_t lookups(InodeId ino) const EXCLUDES(mutex_);

  size_t size() const EXCLUDES(mutex_);

 private:
  // Moves inodes that leave the table to `dropped`: the caller destroys them, and their extents, without the lock.
  void TrimLocked(std::vector<InodePtr>* dropped) REQUIRES(mutex_);
  void TrimBucketLocked(std::vector<InodePtr>* dropped) REQUIRES(mutex_);
  void EraseLocked(InodeId ino) REQUIRES(mutex_);
  uint64_t& DepartedLocked(InodeId ino) REQUIRES(mutex_) { return departed_[ino.value % departed_.size()]; }

  KvStore& catalog_;
  const FileServices services_;
  const size_t resident_;
  mutable Mutex mutex_;
  std::unordered_map<InodeId, InodePtr> inodes_ GUARDED_BY(mutex_);
  size_t hand_ GUARDED_BY(mutex_) = 0;  // clock hand: the bucket visited last
  size_t extents_left_ GUARDED_BY(mutex_) = 0;  // the fewest extents in memory since the end of the last scan for them
  // The number of inodes that have left the table, by inode number modulo the array size.
  std::array<uint64_t, 64> departed_ GUARDED_BY(mutex_) = {};
  std::unordered_map<InodeId, uint64_t> lookups_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
