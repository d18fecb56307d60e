// SPDX-License-Identifier: Apache-2.0
#include "store/names/inode_table.h"

#include <fmt/format.h>

#include "common/log.h"
#include "meta/keys.h"

namespace weightfs {

InodePtr InodeTable::Find(InodeId ino) {
  MutexLock lock(mutex_);
  const auto found = inodes_.find(ino);
  return found == inodes_.end() ? nullptr : found->second;
}

Result<InodePtr> InodeTable::Get(InodeId ino) {
  uint64_t departed;
  {
    MutexLock lock(mutex_);
    if (const auto found = inodes_.find(ino); found != inodes_.end()) return found->second;
    departed = DepartedLocked(ino);
  }
  // Read without the lock. A record that was read before a concurrent change must not be installed. A change requires
  // the inode in the table, so read again if the inode may have left the table meanwhile.
  while (true) {
    ASSIGN_OR_RETURN(auto bytes, catalog_.Get(keys::Inode(ino)));
    if (!bytes) return ErrorCode::kStale;
    auto record = InodeRecord::Decode(*bytes);
    if (!record) {
      spdlog::error("inode {}: its record is damaged: {}; run weightfs fsck", ino.value, ToString(record.error()));
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
    TrimLocked();
    return inode;
  }
}

InodePtr InodeTable::Insert(InodeId ino, InodeRecord record) {
  auto inode = std::make_shared<Inode>(ino, std::move(record), services_);
  MutexLock lock(mutex_);
  inodes_[ino] = inode;
  TrimLocked();
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
void InodeTable::TrimLocked() {
  // Visit a few buckets for each new inode, round robin, so that no call searches a table in which all inodes are in
  // use.
  constexpr int kBuckets = 16;
  for (int step = 0; step < kBuckets && inodes_.size() > resident_; ++step) {
    hand_ = (hand_ + 1) % inodes_.bucket_count();
    std::vector<InodeId> idle;
    for (auto at = inodes_.begin(hand_); at != inodes_.end(hand_); ++at) {
      if (at->second.use_count() == 1) idle.push_back(at->first);
    }
    for (const InodeId ino : idle) EraseLocked(ino);
  }
}

}  // namespace weightfs
