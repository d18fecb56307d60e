// SPDX-License-Identifier: Apache-2.0
#include "fs/page_cache.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

namespace weightfs {

OpenMode ChooseOpenMode(int flags, bool map_direct) {
  // A write-only file cannot be mapped, so it loses nothing without the page cache.
  const bool direct = map_direct || (flags & O_DIRECT) != 0 || (flags & O_ACCMODE) == O_WRONLY;
  return direct ? OpenMode::kDirect : OpenMode::kPageCache;
}

InodePages::DirectWrite::DirectWrite(InodePages& pages, ByteRange range) : pages_(&pages) {
  MutexLock lock(pages.mutex_);
  ++pages.waiters_;
  while (pages.HasOverlapLocked(pages.write_backs_, range)) pages.changed_.wait(lock.native());
  --pages.waiters_;
  id_ = ++pages.last_id_;
  pages.direct_writes_.push_back({.id = id_, .range = range});
}

InodePages::DirectWrite::DirectWrite(DirectWrite&& other) noexcept
    : pages_(std::exchange(other.pages_, nullptr)), id_(other.id_) {}

InodePages::DirectWrite& InodePages::DirectWrite::operator=(DirectWrite&& other) noexcept {
  if (this != &other) {
    End();
    pages_ = std::exchange(other.pages_, nullptr);
    id_ = other.id_;
  }
  return *this;
}

void InodePages::DirectWrite::MarkApplied() {
  if (pages_ == nullptr) return;
  MutexLock lock(pages_->mutex_);
  for (Record& record : pages_->direct_writes_) {
    if (record.id == id_) record.applied = true;
  }
  if (pages_->waiters_ > 0) pages_->changed_.notify_all();
}

void InodePages::DirectWrite::End() {
  if (InodePages* pages = std::exchange(pages_, nullptr)) pages->Remove(&InodePages::direct_writes_, id_);
}

InodePages::WriteBack::WriteBack(InodePages& pages, ByteRange range) : pages_(&pages) {
  MutexLock lock(pages.mutex_);
  const auto being_applied = [&] {
    return std::any_of(pages.direct_writes_.begin(), pages.direct_writes_.end(),
                       [&](const Record& record) { return !record.applied && record.range.Overlaps(range); });
  };
  ++pages.waiters_;
  while (being_applied()) pages.changed_.wait(lock.native());
  --pages.waiters_;
  id_ = ++pages.last_id_;
  pages.write_backs_.push_back({.id = id_, .range = range});

  std::vector<ByteRange> left_out;
  for (const Record& record : pages.direct_writes_) {
    if (record.range.Overlaps(range)) left_out.push_back(record.range);
  }
  std::sort(left_out.begin(), left_out.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  uint64_t at = range.begin;
  for (const ByteRange& gap : left_out) {
    if (gap.begin > at) pieces_.push_back({at, gap.begin});
    at = std::max(at, gap.end);
  }
  if (at < range.end) pieces_.push_back({at, range.end});
}

void InodePages::WriteBack::End() {
  if (InodePages* pages = std::exchange(pages_, nullptr)) pages->Remove(&InodePages::write_backs_, id_);
}

void InodePages::Remove(std::vector<Record> InodePages::*records, uint64_t id) {
  MutexLock lock(mutex_);
  std::erase_if(this->*records, [id](const Record& record) { return record.id == id; });
  if (waiters_ > 0) changed_.notify_all();
}

bool InodePages::HasOverlapLocked(const std::vector<Record>& records, ByteRange range) const {
  return std::any_of(records.begin(), records.end(),
                     [&](const Record& record) { return record.range.Overlaps(range); });
}

void InodePages::NoteFill() {
  MutexLock lock(mutex_);
  filled_ = true;
}

bool InodePages::MayBeStaleAfterWrite() {
  MutexLock lock(mutex_);
  if (filled_ || cached_ > 0) return true;
  kept_ = false;  // Nobody reads the stale pages now; the next open makes the kernel drop them.
  return false;
}

bool InodePages::MayHoldChanges() const {
  MutexLock lock(mutex_);
  return mappable_ > 0;
}

bool InodePages::MayHaveDirtyPages() const {
  MutexLock lock(mutex_);
  return mappable_ > 0 && (filled_ || cached_ > 0);
}

bool InodePages::AddOpen(OpenMode mode, bool mappable) {
  MutexLock lock(mutex_);
  ++opens_;
  if (mappable) ++mappable_;
  if (mode != OpenMode::kPageCache) return false;
  ++cached_;
  return std::exchange(kept_, true);
}

bool InodePages::RemoveOpen(OpenMode mode, bool mappable) {
  MutexLock lock(mutex_);
  if (mappable) --mappable_;
  if (mode == OpenMode::kPageCache) --cached_;
  if (--opens_ > 0) return false;
  filled_ = false;  // Each direct write has dropped the pages that it made stale; the rest is valid.
  return !kept_;
}

bool InodePages::IsOpen() const {
  MutexLock lock(mutex_);
  return opens_ > 0;
}

PageCacheTracker::Opened PageCacheTracker::Open(InodeId ino, OpenMode mode, bool mappable) {
  MutexLock lock(mutex_);
  std::shared_ptr<InodePages>& pages = inodes_[ino];
  if (pages == nullptr) pages = std::make_shared<InodePages>();
  const bool keep = pages->AddOpen(mode, mappable);
  return {pages, keep};
}

void PageCacheTracker::Close(InodeId ino, OpenMode mode, bool mappable) {
  MutexLock lock(mutex_);
  const auto found = inodes_.find(ino);
  if (found != inodes_.end() && found->second->RemoveOpen(mode, mappable)) inodes_.erase(found);
}

std::shared_ptr<InodePages> PageCacheTracker::Find(InodeId ino) {
  MutexLock lock(mutex_);
  const auto found = inodes_.find(ino);
  return found == inodes_.end() ? nullptr : found->second;
}

void PageCacheTracker::Forget(InodeId ino) {
  MutexLock lock(mutex_);
  const auto found = inodes_.find(ino);
  if (found != inodes_.end() && !found->second->IsOpen()) inodes_.erase(found);
}

std::vector<InodeId> PageCacheTracker::AllThatMayHoldChanges() {
  std::vector<InodeId> inodes;
  MutexLock lock(mutex_);
  for (const auto& [ino, pages] : inodes_) {
    if (pages->MayHoldChanges()) inodes.push_back(ino);
  }
  return inodes;
}

}  // namespace weightfs
