// SPDX-License-Identifier: Apache-2.0
// Chunks of files that read-ahead brought in, shared by all readers of a file.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/units.h"
#include "io/buffer.h"

namespace weightfs {

inline constexpr uint64_t kChunkBytes = 2 * kMiB;

// One aligned kChunkBytes piece of a file, verified. Loading at first; then ready or failed for ever. Thread-safe.
class ReadChunk {
 public:
  explicit ReadChunk(Buffer buffer) : buffer_(std::move(buffer)) {}

  // Runs `done` when loading has ended: at once where it has, else on a completion thread.
  void WhenReady(std::function<void()> done) EXCLUDES(mutex_);
  // Loading ended; `bad` are the parts of the buffer that could not be filled.
  void Finish(Result<void> result, std::vector<std::span<const std::byte>> bad) EXCLUDES(mutex_);
  // After WhenReady: whether `bytes` of the buffer are good.
  Result<void> Check(std::span<const std::byte> bytes) const EXCLUDES(mutex_);
  bool ready() const EXCLUDES(mutex_);  // all of it
  const Buffer& buffer() const { return buffer_; }

 private:
  const Buffer buffer_;
  mutable Mutex mutex_;
  bool finished_ GUARDED_BY(mutex_) = false;
  Result<void> result_ GUARDED_BY(mutex_);
  std::vector<std::span<const std::byte>> bad_ GUARDED_BY(mutex_);
  std::vector<std::function<void()>> waiters_ GUARDED_BY(mutex_);
};

using ChunkPtr = std::shared_ptr<ReadChunk>;

// Chunks by inode and index. The chunk that was read to its end longest ago is evicted first. A chunk that read-ahead
// loaded and nobody has read yet is evicted for a chunk that is needed now; for other read-ahead only once it is old.
// Every change of a file's mapping or dirty blocks invalidates under the inode's mutex, and chunks begin under that
// mutex too, so that no chunk is older than the state it is looked up in. Thread-safe.
class ReadCache {
 public:
  enum class Purpose : unsigned char { kNeeded, kAhead };

  explicit ReadCache(BufferPool& pool) : pool_(pool) {}

  ChunkPtr Find(InodeId ino, uint64_t index) EXCLUDES(mutex_);
  // A buffer for a new chunk, for which another chunk may go; empty when none can be had for that purpose.
  Buffer TakeBuffer(Purpose purpose) EXCLUDES(mutex_);
  // Adds a new, loading chunk. The cache does not have it.
  ChunkPtr Begin(InodeId ino, uint64_t index, Buffer buffer) EXCLUDES(mutex_);
  // Somebody has read the chunk to its end.
  void NoteRead(InodeId ino, uint64_t index) EXCLUDES(mutex_);
  // Drops chunk `index` if it is still `chunk` (it failed).
  void Drop(InodeId ino, uint64_t index, const ReadChunk* chunk) EXCLUDES(mutex_);
  // Drops the chunks that hold any of [offset, end).
  void Invalidate(InodeId ino, uint64_t offset, uint64_t end) EXCLUDES(mutex_);

  size_t capacity() const { return pool_.capacity(); }

 private:
  struct Entry {
    InodeId ino;
    uint64_t index;
    ChunkPtr chunk;
    bool read = false;  // to its end
    uint64_t used = 0;  // begun_ at its last use
  };
  using Entries = std::list<Entry>;
  struct File {
    std::unordered_map<uint64_t, Entries::iterator> chunks;
  };

  bool EvictLocked(Purpose purpose) REQUIRES(mutex_);
  bool EvictFromLocked(Entries& entries, uint64_t used_before) REQUIRES(mutex_);
  Entries& ListOf(const Entry& entry) REQUIRES(mutex_) { return entry.read ? read_ : unread_; }
  void EraseLocked(Entries::iterator entry) REQUIRES(mutex_);

  BufferPool& pool_;
  Mutex mutex_;
  Entries read_ GUARDED_BY(mutex_), unread_ GUARDED_BY(mutex_);  // each with the least recently used first
  uint64_t begun_ GUARDED_BY(mutex_) = 0;                        // chunks so far
  std::unordered_map<InodeId, File> files_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
