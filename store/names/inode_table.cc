// SPDX-License-Identifier: Apache-2.0
#include "store/names/inode_table.h"

#include <algorithm>

#include "common/log.h"
#include "meta/keys.h"

namespace weightfs {
namespace {

// Of an inode that nobody else has.
size_t ExtentsOf(const Inode& inode) NO_THREAD_SAFETY_ANALYSIS {
  return inode.file ? inode.file->extents().size() : 0;
}

}  // namespace

InodePtr InodeTable::Find(InodeId ino) {
  MutexLock lock(mutex_);
  const auto found = inodes_.find(ino);
  return found == inodes_.end() ? nullptr : found->second;
}

Result<InodePtr> InodeTable::Get(InodeId ino) {
  uint64_t departed;
  std::vector<InodePtr> dropped;
  {
    MutexLock lock(mutex_);
    if (const auto found = inodes_.find(ino); found != inodes_.end()) {
      const InodePtr inode = found->second;
      TrimLocked(&dropped);
      return inode;
    }
    departed = DepartedLocked(ino);
  }
  // Read without the lock. A record that was read before a concurrent change must not be installed. A change requires
  // the inode in the table, so read again if the inode may have left the table meanwhile.
  while (true) {
    ASSIGN_OR_RETURN(auto bytes, catalog_.Get(keys::Inode(ino)));
    if (!bytes) return ErrorCode::kStale;
    auto record = InodeRecord::Decode(*bytes);
    if (!record) {
      spdlog::error("inode {}: its record is damaged: {}; run weightfs verify", ino.value, ToString(record.error()));
      return record.error();
    }
    MutexLock lock(mutex_);
    if (const auto found = inodes_.find(ino); found != inodes_.end()) return found->second;
    if (DepartedLocked(ino) != departed) {
      ASSIGN_OR_RETURN(auto again, catalog_.Get(keys::Inode(ino)));
      if (!again) return ErrorCode::kStale;
      if (*again != *bytes) continue;
    }
    auto inode = std::make_shared<Inode>(ino, std::move(*record), services_);
    inodes_.emplace(ino, inode);
    TrimLocked(&dropped);
    return inode;
  }
}

InodePtr InodeTable::Insert(InodeId ino, InodeRecord record) {
  auto inode = std::make_shared<Inode>(ino, std::move(record), services_);
  std::vector<InodePtr> dropped;
  MutexLock lock(mutex_);
  inodes_[ino] = inode;
  TrimLocked(&dropped);
  return inode;
}

void InodeTable::Erase(InodeId ino) {
  MutexLock lock(mutex_);
  EraseLocked(ino);
}

void InodeTable::EraseLocked(InodeId ino) { DepartedLocked(ino) += inodes_.erase(ino); }

void InodeTable::AddLookups(InodeId ino, uint64_t count) {
  MutexLock lock(mutex_);
  lookups_[ino] += count;
}

uint64_t InodeTable::DropLookups(InodeId ino, uint64_t count) {
  MutexLock lock(mutex_);
  const auto found = lookups_.find(ino);
  if (found == lookups_.end()) return 0;
  if (found->second > count) return found->second -= count;
  lookups_.erase(found);
  return 0;
}

uint64_t InodeTable::lookups(InodeId ino) const {
  MutexLock lock(mutex_);
  const auto found = lookups_.find(ino);
  return found == lookups_.end() ? 0 : found->second;
}

size_t InodeTable::size() const {
  MutexLock lock(mutex_);
  return inodes_.size();
}

// Only the table creates references, under its lock: a count of one means that nobody else has the inode. The committer
// holds dirty inodes. The catalog therefore has the whole state of such an inode.
void InodeTable::TrimBucketLocked(std::vector<InodePtr>* dropped) {
  hand_ = (hand_ + 1) % inodes_.bucket_count();
  const size_t first = dropped->size();
  for (auto at = inodes_.begin(hand_); at != inodes_.end(hand_); ++at) {
    if (at->second.use_count() == 1) dropped->push_back(at->second);
  }
  for (size_t i = first; i < dropped->size(); ++i) EraseLocked((*dropped)[i]->id);
}

void InodeTable::TrimLocked(std::vector<InodePtr>* dropped) {
  // Visit a few buckets for each new inode, round robin, so that no call searches a table in which all inodes are in
  // use.
  constexpr int kBuckets = 16;
  for (int step = 0; step < kBuckets && inodes_.size() > resident_; ++step) TrimBucketLocked(dropped);
  // A few files may have most extents, so this is a scan of all inodes, and not one for each call.
  const size_t most = resident_ * kExtentsPerInode;
  size_t extents = services_.extent_memory->extents();
  extents_left_ = std::min(extents_left_, extents);
  if (extents <= std::max(most, extents_left_ + most / 8)) return;
  for (size_t step = 0; step < inodes_.bucket_count() && extents > most; ++step) {
    const size_t first = dropped->size();
    TrimBucketLocked(dropped);
    for (size_t i = first; i < dropped->size(); ++i) extents -= ExtentsOf(*(*dropped)[i]);
  }
  extents_left_ = extents;
}

}  // namespace weightfs
