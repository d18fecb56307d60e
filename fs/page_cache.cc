// SPDX-License-Identifier: Apache-2.0
#include "fs/page_cache.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "fs/backing.h"

namespace weightfs {

OpenMode ChooseOpenMode(int flags, bool map_direct) {
  // A write-only file cannot be mapped, so it does not need the page cache.
  const bool direct = map_direct || (flags & O_DIRECT) != 0 || (flags & O_ACCMODE) == O_WRONLY;
  return direct ? OpenMode::kDirect : OpenMode::kPageCache;
}

InodePages::DirectWrite::DirectWrite(InodePages& pages, ByteRange range, DropPolicy policy)
    : pages_(&pages), range_(range) {
  MutexLock lock(pages.mutex_);
  must_drop_ = policy == DropPolicy::kAlways || pages.filled_ || pages.cached_ > 0;
  if (must_drop_) return;
  pages.kept_ = false;  // no open reads the stale pages now; the next one makes the kernel drop them
  id_ = pages.RecordLocked(range);
}

InodePages::DirectWrite::DirectWrite(DirectWrite&& other) noexcept { *this = std::move(other); }

InodePages::DirectWrite& InodePages::DirectWrite::operator=(DirectWrite&& other) noexcept {
  if (this != &other) {
    End();
    pages_ = other.pages_;
    range_ = other.range_;
    id_ = std::exchange(other.id_, 0);
    must_drop_ = std::exchange(other.must_drop_, false);
  }
  return *this;
}

Result<void> InodePages::DirectWrite::DropPages(const Drop& drop) {
  WEIGHTFS_ASSERT(must_drop_ && id_ == 0);
  Result<void> dropped;
  {
    MutexLock lock(pages_->mutex_);
    while (pages_->dropping_ != 0) pages_->drop_ended_.wait(lock.native());
    id_ = pages_->dropping_ = pages_->RecordLocked(range_);
    pages_->to_drop_ = {range_};
    while (!pages_->to_drop_.empty() && dropped.has_value()) {
      const ByteRange part = pages_->to_drop_.front();
      lock.Unlock();
      dropped = drop(part);
      lock.Lock();
      pages_->to_drop_.pop_front();
    }
    pages_->to_drop_.clear();
    pages_->dropping_ = 0;
    must_drop_ = false;
  }
  pages_->drop_ended_.notify_all();
  if (!dropped.has_value()) End();
  return dropped;
}

void InodePages::DirectWrite::End() {
  if (const uint64_t id = std::exchange(id_, 0); id != 0) pages_->Remove(id);
}

uint64_t InodePages::RecordLocked(ByteRange range) {
  direct_writes_.push_back({.id = ++last_id_, .range = range, .waiting = {}});
  return last_id_;
}

void InodePages::Remove(uint64_t id) {
  std::vector<Fill> waiting;
  {
    MutexLock lock(mutex_);
    const auto record = std::find_if(direct_writes_.begin(), direct_writes_.end(),
                                     [id](const Record& candidate) { return candidate.id == id; });
    WEIGHTFS_ASSERT(record != direct_writes_.end());
    waiting = std::move(record->waiting);
    direct_writes_.erase(record);
  }
  for (const Fill& fill : waiting) {
    if (BeginFill(fill.range, fill.run)) fill.run();
  }
}

bool InodePages::BeginFill(ByteRange range, std::function<void()> fill) {
  const auto overlaps = [&](const ByteRange& other) { return other.Overlaps(range); };
  const auto contains = [&](const ByteRange& other) { return other.Contains(range); };
  MutexLock lock(mutex_);
  bool drop_again = false;
  for (Record& record : direct_writes_) {
    if (!record.range.Overlaps(range)) continue;
    // The kernel waits for this fill before it drops these pages. It has none of the other pages, since it requests
    // them.
    if (record.id == dropping_ && std::any_of(to_drop_.begin(), to_drop_.end(), overlaps)) {
      drop_again = true;
      continue;
    }
    record.waiting.push_back({range, std::move(fill)});
    return false;
  }
  filled_ = true;
  if (drop_again && std::none_of(to_drop_.begin() + 1, to_drop_.end(), contains)) to_drop_.push_back(range);
  return true;
}

bool InodePages::MayHoldChanges() const {
  MutexLock lock(mutex_);
  return mappable_ > 0;
}

bool InodePages::is_open() const {
  MutexLock lock(mutex_);
  return opens_ > 0;
}

bool InodePages::MayHaveDirtyPages() const {
  MutexLock lock(mutex_);
  return mappable_ > 0 && (filled_ || cached_ > 0);
}

bool InodePages::AddOpen(OpenMode mode, bool mappable, std::shared_ptr<Backing>* backing) {
  MutexLock lock(mutex_);
  if (opens_ == 0) backing_ = std::move(*backing);
  *backing = backing_;
  ++opens_;
  if (mappable) ++mappable_;
  if (mode != OpenMode::kPageCache || backing_ != nullptr) return false;
  ++cached_;
  return std::exchange(kept_, true);
}

bool InodePages::RemoveOpen(OpenMode mode, bool mappable, std::shared_ptr<Backing>* unused) {
  MutexLock lock(mutex_);
  if (mappable) --mappable_;
  if (mode == OpenMode::kPageCache) --cached_;
  if (--opens_ > 0) return false;
  *unused = std::move(backing_);
  filled_ = false;  // each direct write has dropped the pages that it made stale; the rest is valid
  return !kept_ && direct_writes_.empty();
}

bool InodePages::IsInUse() const {
  MutexLock lock(mutex_);
  return opens_ > 0 || !direct_writes_.empty();
}

PageCacheTracker::Opened PageCacheTracker::Open(InodeId ino, OpenMode mode, bool mappable,
                                                std::shared_ptr<Backing> backing) {
  const std::shared_ptr<Backing> offered = backing;  // destroyed after the mutex is released
  MutexLock lock(mutex_);
  std::shared_ptr<InodePages>& pages = inodes_[ino];
  if (pages == nullptr) pages = std::make_shared<InodePages>();
  const bool keep = pages->AddOpen(mode, mappable, &backing);
  return {pages, keep, std::move(backing)};
}

void PageCacheTracker::Close(InodeId ino, OpenMode mode, bool mappable) {
  std::shared_ptr<Backing> unused;  // destroyed after the mutex is released
  MutexLock lock(mutex_);
  const auto found = inodes_.find(ino);
  if (found != inodes_.end() && found->second->RemoveOpen(mode, mappable, &unused)) inodes_.erase(found);
}

std::shared_ptr<InodePages> PageCacheTracker::Find(InodeId ino) {
  MutexLock lock(mutex_);
  const auto found = inodes_.find(ino);
  return found == inodes_.end() ? nullptr : found->second;
}

void PageCacheTracker::Forget(InodeId ino) {
  MutexLock lock(mutex_);
  const auto found = inodes_.find(ino);
  if (found != inodes_.end() && !found->second->IsInUse()) inodes_.erase(found);
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
