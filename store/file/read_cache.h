// SPDX-License-Identifier: Apache-2.0
// Chunks of files in memory, and those that read-ahead has loaded, shared by all readers of a file.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/units.h"
#include "io/buffer.h"

namespace weightfs {

class HotFiles;

inline constexpr uint64_t kChunkBytes = 2 * kMiB;

// One verified, aligned piece of a file, kChunkBytes long. It is loading at first, then ready or failed forever.
// Thread-safe.
class ReadChunk {
 public:
  explicit ReadChunk(Buffer buffer) : buffer_(std::move(buffer)) {}

  // Runs `done` when loading has ended: at once if it has, else on a completion thread.
  void WhenReady(std::function<void()> done) EXCLUDES(mutex_);
  // Waits until loading has ended. Returns its result.
  Result<void> Wait() EXCLUDES(mutex_);
  // Ends the loading. `bad` lists the parts of the buffer that could not be filled.
  void Finish(Result<void> result, std::vector<std::span<const std::byte>> bad) EXCLUDES(mutex_);
  // Checks after WhenReady whether `bytes` of the buffer are good.
  Result<void> Check(std::span<const std::byte> bytes) const EXCLUDES(mutex_);
  bool ready() const EXCLUDES(mutex_);  // the whole chunk is good
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

// Chunks by inode and index. The chunk whose last complete read is oldest is evicted first. A chunk loaded by
// read-ahead and not read yet may be evicted for a chunk that is needed now; for other read-ahead it is evicted only
// once it is old. Every change of a file's mapping or dirty blocks invalidates its chunks under the inode's mutex, and
// loads begin under that mutex too, so no chunk is older than the state it is looked up in. Thread-safe.
class ReadCache {
 public:
  enum class Purpose : unsigned char { kNeeded, kAhead };

  // `hot` may be null. A chunk of a hot file is found before one of the cache.
  ReadCache(BufferPool& pool, HotFiles* hot) : pool_(pool), hot_(hot) {}

  ChunkPtr Find(InodeId ino, uint64_t index) EXCLUDES(mutex_);
  // Returns a buffer for a new chunk and may evict another chunk for it; empty when no buffer is available for that
  // purpose.
  Buffer TakeBuffer(Purpose purpose) EXCLUDES(mutex_);
  // Adds a new chunk in the loading state. The cache must not have it.
  ChunkPtr Begin(InodeId ino, uint64_t index, Buffer buffer) EXCLUDES(mutex_);
  // Records that a reader reached the end of the chunk.
  void NoteRead(InodeId ino, uint64_t index) EXCLUDES(mutex_);
  // Drops chunk `index` if it is still `chunk`. Used after a failed load.
  void Drop(InodeId ino, uint64_t index, const ReadChunk* chunk) EXCLUDES(mutex_);
  // Drops the chunks of read-ahead. The next reads load those that suit the file as it is then.
  void DropReadAhead(InodeId ino) EXCLUDES(mutex_) { Erase(ino, 0, UINT64_MAX); }
  // Drops the chunks that overlap [offset, end), and makes the file no longer hot.
  void Invalidate(InodeId ino, uint64_t offset, uint64_t end) EXCLUDES(mutex_);

  size_t capacity() const { return pool_.capacity(); }
  HotFiles* hot() const { return hot_; }

 private:
  struct Entry {
    InodeId ino;
    uint64_t index;
    ChunkPtr chunk;
    bool read = false;  // to the end of the chunk
    uint64_t used = 0;  // value of begun_ at the last use
  };
  using Entries = std::list<Entry>;
  bool EvictLocked(Purpose purpose) REQUIRES(mutex_);
  bool EvictFromLocked(Entries& entries, uint64_t used_before) REQUIRES(mutex_);
  Entries& ListOf(const Entry& entry) REQUIRES(mutex_) { return entry.read ? read_ : unread_; }
  void Erase(InodeId ino, uint64_t offset, uint64_t end) EXCLUDES(mutex_);
  void EraseLocked(Entries::iterator entry) REQUIRES(mutex_);

  BufferPool& pool_;
  HotFiles* const hot_;
  Mutex mutex_;
  Entries read_ GUARDED_BY(mutex_), unread_ GUARDED_BY(mutex_);  // least recently used first
  uint64_t begun_ GUARDED_BY(mutex_) = 0;                        // number of chunks begun so far
  std::map<std::pair<InodeId, uint64_t>, Entries::iterator> chunks_ GUARDED_BY(mutex_);  // by inode and index
};

}  // namespace weightfs
