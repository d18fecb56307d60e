// SPDX-License-Identifier: Apache-2.0
// The content of files in memory that programs can map.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "common/units.h"
#include "io/shared_pages.h"
#include "store/file/read_cache.h"

namespace weightfs {

// The content of one file at one moment, as far as it was loaded. A later change of the file does not change it.
class HotFile {
 public:
  uint64_t id() const { return id_; }      // never 0, and of no other content
  uint64_t size() const { return size_; }  // bytes

 private:
  friend class HotFiles;

  HotFile(uint64_t id, InodeId ino, uint64_t size, std::shared_ptr<SharedFile> memory)
      : id_(id), ino_(ino), size_(size), memory_(std::move(memory)) {}
  uint64_t counted() const { return std::max<uint64_t>(chunks_.size(), touched_); }

  const uint64_t id_;
  const InodeId ino_;
  const uint64_t size_;
  const std::shared_ptr<SharedFile> memory_;  // with its chunks, and those who read them
  // What a program loads, all of which is in chunks_. Its requests begin ever later, and have one end.
  struct Load {
    uint64_t first;
    std::chrono::steady_clock::time_point asked_at;  // the last time, or the end of that request
  };
  // The mutex of the HotFiles protects the rest.
  std::map<uint64_t, ChunkPtr> chunks_;  // those that have memory, perhaps without pages; null: not loaded
  std::map<uint64_t, Load> loads_;       // by their ends
  std::map<uint64_t, std::weak_ptr<ReadChunk>> failed_;  // whose good parts are perhaps still being read
  uint64_t touched_ = 0;   // chunks with pages, by the last count
  uint64_t passes_ = 0;    // to the kernel, for passthrough, without those that it refused
  bool current_ = false;   // no change of the file has followed
  bool whole_ = false;     // all of it is loaded
  std::list<std::shared_ptr<HotFile>>::iterator position_;  // in HotFiles::files_
};

using HotFilePtr = std::shared_ptr<HotFile>;

// The hot files of a store, within a limit of memory. The memory of a content that was changed, or not used for
// longest, is given back when no program has it open or mapped any more; until then it counts. It never gets another
// content: pages of it may be in a pipe or a socket (splice(2) of a passthrough file), of which nobody tells.
// Thread-safe.
class HotFiles {
 public:
  struct Counters {
    std::atomic<uint64_t> mapped_bytes{0}, loaded_bytes{0}, evictions{0};
  };
  using Time = std::chrono::steady_clock::time_point;
  // Memory that was given back: destroyed without locks, because unmapping takes long.
  using Freed = std::vector<std::shared_ptr<void>>;

  // `limit`: of all memory together, in whole chunks. The number of contents and the sum of their sizes are limited,
  // too, because each needs two descriptors and a mapping of this process.
  HotFiles(std::unique_ptr<SharedPages> pages, ByteCount limit);

  // A content of a file, without memory. Evicts others until there is memory for so many `chunks`. kNoMemory, and
  // nothing is evicted, if they do not fit beside what is in use, or too many contents are.
  Result<HotFilePtr> Make(InodeId ino, uint64_t size, uint64_t chunks) EXCLUDES(mutex_);
  // Reserves memory for chunks [first, last), in the same way.
  Result<void> Reserve(HotFile& file, uint64_t first, uint64_t last, Time now = std::chrono::steady_clock::now())
      EXCLUDES(mutex_);
  // Same for one chunk, with pages from the machine. kNoMemory: it has none, or as above.
  Result<void> Provide(HotFile& file, uint64_t index) EXCLUDES(mutex_);
  // The current content of a file, or null. Find, Begin and Forget: under the inode's mutex.
  HotFilePtr Find(InodeId ino) EXCLUDES(mutex_);
  // Makes a content current, in place of an older one.
  void Begin(const HotFilePtr& file) EXCLUDES(mutex_);
  // After a change of the file, or damage: it has no current content.
  void Forget(InodeId ino) EXCLUDES(mutex_);
  bool IsCurrent(const HotFile& file) const EXCLUDES(mutex_);

  // A chunk of the content, or of the current content of a file; null if it is not loaded.
  ChunkPtr FindChunk(const HotFile& file, uint64_t index) const EXCLUDES(mutex_);
  ChunkPtr FindChunk(InodeId ino, uint64_t index) EXCLUDES(mutex_);
  // Begins to load a chunk; the content must not have it. Null if no memory is reserved for it, or somebody still reads
  // what an earlier load could verify.
  ChunkPtr BeginChunk(HotFile& file, uint64_t index) EXCLUDES(mutex_);
  // A chunk was not loaded, or only in part: others may use its good parts. Later it can be begun again.
  void Fail(HotFile& file, uint64_t index) EXCLUDES(mutex_);

  // A descriptor of the content for a program that may read the file: the end of its request, which had reserved
  // memory up to chunk `last`. What is not loaded has zeros, and while it is loaded unverified bytes. kAgain: it is not
  // current.
  Result<UniqueFd> OpenForReading(HotFile& file, uint64_t last, Time now = std::chrono::steady_clock::now())
      EXCLUDES(mutex_);
  // A descriptor of the current content of a file; none unless all of [first, last) is loaded. Under the inode's mutex.
  Result<UniqueFd> OpenLoaded(InodeId ino, uint64_t first, uint64_t last) EXCLUDES(mutex_);
  // Counts a descriptor that goes to the kernel for passthrough (`passes`: 1), or that it has refused (-1).
  void Pass(HotFile& file, int passes) EXCLUDES(mutex_);
  // True while the kernel, or a mapping that it has made, uses the memory of a content of the file by passthrough.
  // Perhaps also true if only programs map the content that was once used so.
  bool IsPassed(InodeId ino) const EXCLUDES(mutex_);
  // The kernel takes descriptors for passthrough.
  void UsePassthrough(bool use) { passthrough_ = use; }
  bool passthrough() const { return passthrough_; }

  // To be called now and then. Gives the memory of contents that are gone back to the machine, and counts what programs
  // use by reading behind what is loaded: each page that they touch gets memory. Memory that was reserved for a load,
  // but not loaded, is given back ten minutes after the last request of a load that ends there.
  void Count(Time now = std::chrono::steady_clock::now()) EXCLUDES(mutex_);
  // Gives memory back to the machine, until the files use at most `bytes` or all are in use.
  void Shrink(uint64_t bytes) EXCLUDES(mutex_);

  ByteCount limit() const { return limit_; }
  bool on_tmpfs() const { return pages_->on_tmpfs(); }
  uint64_t used_bytes() const EXCLUDES(mutex_);
  Counters& counters() { return counters_; }

 private:
  using Files = std::list<HotFilePtr>;
  HotFilePtr FindLocked(InodeId ino) REQUIRES(mutex_);
  void ForgetLocked(InodeId ino) REQUIRES(mutex_);
  bool MakeRoomLocked(uint64_t chunks, uint64_t slots, Freed* freed) REQUIRES(mutex_);
  void ShrinkLocked(uint64_t chunks, Freed* freed) REQUIRES(mutex_);
  void EvictLocked(const HotFilePtr& file, Freed* freed) REQUIRES(mutex_);
  bool ReserveLocked(HotFile& file, uint64_t first, uint64_t last, Freed* freed) REQUIRES(mutex_);
  void ForgetLoadsLocked(HotFile& file, Time now) REQUIRES(mutex_);
  static bool IsInUse(const HotFilePtr& file);
  uint64_t most() const { return limit_.value / kChunkBytes; }

  const std::unique_ptr<SharedPages> pages_;
  const ByteCount limit_;
  const uint64_t most_slots_;
  std::atomic<bool> passthrough_{false};
  Counters counters_;
  mutable Mutex mutex_;
  Files files_ GUARDED_BY(mutex_);  // all, least recently used first; those that were replaced before the others
  std::multimap<InodeId, HotFile*> by_inode_ GUARDED_BY(mutex_);  // those that are or were current, the latest last
  uint64_t looks_ GUARDED_BY(mutex_) = 0;     // at contents in use that MakeRoomLocked may take
  uint64_t reserved_ GUARDED_BY(mutex_) = 0;  // chunks of all contents
  uint64_t slots_ GUARDED_BY(mutex_) = 0;     // of all contents, and of those that are being made
  uint64_t made_ GUARDED_BY(mutex_) = 0;
};

}  // namespace weightfs
