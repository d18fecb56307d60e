#include "fs/page_cache.h"

namespace weightfs {

bool PageCacheTracker::Open(InodeId ino) {
  MutexLock lock(mutex_);
  const auto [entry, added] = opens_.try_emplace(ino, 0);
  ++entry->second;
  return !added;
}

void PageCacheTracker::Close(InodeId ino) {
  MutexLock lock(mutex_);
  if (const auto entry = opens_.find(ino); entry != opens_.end() && entry->second > 0) --entry->second;
}

bool PageCacheTracker::ChangedPastCache(InodeId ino) {
  MutexLock lock(mutex_);
  const auto entry = opens_.find(ino);
  if (entry == opens_.end()) return false;
  if (entry->second > 0) return true;
  // Nobody reads the stale pages now; without the entry the next open makes the kernel drop them.
  opens_.erase(entry);
  return false;
}

void PageCacheTracker::Forget(InodeId ino) {
  MutexLock lock(mutex_);
  if (const auto entry = opens_.find(ino); entry != opens_.end() && entry->second == 0) opens_.erase(entry);
}

void PageCacheTracker::OpenMappable(InodeId ino) {
  MutexLock lock(mutex_);
  ++mappable_[ino];
}

void PageCacheTracker::CloseMappable(InodeId ino) {
  MutexLock lock(mutex_);
  const auto found = mappable_.find(ino);
  if (found != mappable_.end() && --found->second == 0) mappable_.erase(found);
}

std::vector<InodeId> PageCacheTracker::AllThatMayHoldChanges() {
  std::vector<InodeId> inodes;
  MutexLock lock(mutex_);
  for (const auto& [ino, count] : mappable_) inodes.push_back(ino);
  return inodes;
}

bool PageCacheTracker::MayHoldChanges(InodeId ino) {
  MutexLock lock(mutex_);
  return mappable_.contains(ino);
}

}  // namespace weightfs
