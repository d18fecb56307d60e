// SPDX-License-Identifier: Apache-2.0
#include "store/file/read_cache.h"

#include "common/assert.h"
#include "common/sync_wait.h"
#include "store/file/hot_files.h"

namespace weightfs {
namespace {

// A chunk that nobody has read is old once this many times the capacity of the cache has been loaded since its last
// use.
constexpr uint64_t kOldTurns = 8;

}  // namespace

ChunkPtr ReadCache::Find(InodeId ino, uint64_t index) {
  if (ChunkPtr chunk = hot_ == nullptr ? nullptr : hot_->FindChunk(ino, index)) return chunk;
  MutexLock lock(mutex_);
  const auto found = chunks_.find({ino, index});
  if (found == chunks_.end()) return nullptr;
  Entries& entries = ListOf(*found->second);
  entries.splice(entries.end(), entries, found->second);
  found->second->used = begun_;
  return found->second->chunk;
}

Buffer ReadCache::TakeBuffer(Purpose purpose) {
  MutexLock lock(mutex_);
  Buffer buffer = pool_.TryAllocate();
  while (!buffer && EvictLocked(purpose)) buffer = pool_.TryAllocate();
  return buffer;
}

ChunkPtr ReadCache::Begin(InodeId ino, uint64_t index, Buffer buffer) {
  WEIGHTFS_ASSERT(buffer && buffer.size().value == kChunkBytes);
  MutexLock lock(mutex_);
  auto chunk = std::make_shared<ReadChunk>(std::move(buffer));
  const auto entry = unread_.insert(unread_.end(), Entry{ino, index, chunk, false, ++begun_});
  const bool added = chunks_.emplace(std::pair(ino, index), entry).second;
  WEIGHTFS_ASSERT(added);
  return chunk;
}

void ReadCache::NoteRead(InodeId ino, uint64_t index) {
  MutexLock lock(mutex_);
  const auto found = chunks_.find({ino, index});
  if (found == chunks_.end()) return;
  Entries& from = ListOf(*found->second);
  found->second->read = true;
  read_.splice(read_.end(), from, found->second);
}

bool ReadCache::EvictLocked(Purpose purpose) {
  const uint64_t age = kOldTurns * pool_.capacity();
  const uint64_t old = begun_ > age ? begun_ - age : 0;
  return EvictFromLocked(read_, UINT64_MAX) || EvictFromLocked(unread_, purpose == Purpose::kNeeded ? UINT64_MAX : old);
}

// Drops the least recently used chunk of the list that nobody loads or reads from.
bool ReadCache::EvictFromLocked(Entries& entries, uint64_t used_before) {
  for (auto entry = entries.begin(); entry != entries.end() && entry->used < used_before; ++entry) {
    if (entry->chunk.use_count() > 1 || !entry->chunk->ready()) continue;
    EraseLocked(entry);
    return true;
  }
  return false;
}

void ReadCache::EraseLocked(Entries::iterator entry) {
  chunks_.erase({entry->ino, entry->index});
  ListOf(*entry).erase(entry);
}

void ReadCache::Drop(InodeId ino, uint64_t index, const ReadChunk* chunk) {
  MutexLock lock(mutex_);
  const auto found = chunks_.find({ino, index});
  if (found != chunks_.end() && found->second->chunk.get() == chunk) EraseLocked(found->second);
}

void ReadCache::Invalidate(InodeId ino, uint64_t offset, uint64_t end) {
  if (hot_ != nullptr) hot_->Forget(ino);
  Erase(ino, offset, end);
}

void ReadCache::Erase(InodeId ino, uint64_t offset, uint64_t end) {
  const std::pair last(ino, end == 0 ? 0 : (end - 1) / kChunkBytes);
  MutexLock lock(mutex_);
  auto next = chunks_.lower_bound({ino, offset / kChunkBytes});
  while (next != chunks_.end() && next->first <= last) EraseLocked((next++)->second);
}

void ReadChunk::WhenReady(std::function<void()> done) {
  {
    MutexLock lock(mutex_);
    if (!finished_) {
      waiters_.push_back(std::move(done));
      return;
    }
  }
  done();
}

Result<void> ReadChunk::Wait() {
  SyncWait<bool>([this](auto done) { WhenReady([done] { done(true); }); });
  MutexLock lock(mutex_);
  return result_;
}

void ReadChunk::Finish(Result<void> result, std::vector<std::span<const std::byte>> bad) {
  std::vector<std::function<void()>> waiters;
  {
    MutexLock lock(mutex_);
    result_ = std::move(result);
    bad_ = std::move(bad);
    finished_ = true;
    waiters.swap(waiters_);
  }
  for (auto& waiter : waiters) waiter();
}

Result<void> ReadChunk::Check(std::span<const std::byte> bytes) const {
  MutexLock lock(mutex_);
  for (const auto& bad : bad_) {
    if (bad.data() < bytes.data() + bytes.size() && bytes.data() < bad.data() + bad.size()) return result_;
  }
  return {};
}

bool ReadChunk::ready() const {
  MutexLock lock(mutex_);
  return finished_ && result_.has_value();
}

}  // namespace weightfs
