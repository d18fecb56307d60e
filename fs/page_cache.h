// SPDX-License-Identifier: Apache-2.0
// Keeps the kernel's page cache coherent with writes that bypass it.
//
// A write through a direct I/O open, or by a lease, reaches the store while pages of the same file may be in the page
// cache, mapped by programs. The kernel drops the pages of the range before it sends the write, not afterwards, so a
// page fault in between brings back the old content. Readers of that page would see the old bytes forever, and once a
// program stores into the page, its write-back would overwrite bytes that were acknowledged. Therefore:
//
//   1. A direct write is recorded while the store takes it. A write-back of the same bytes does not run meanwhile.
//   2. If the kernel has filled pages of the file, the daemon makes it drop those of the range before it acknowledges
//      the write. The kernel writes dirty pages back first.
//   3. A write-back that arrives before the pages are dropped leaves out the bytes of the recorded write: the page may
//      have been filled before the write, and only the rest of it was changed through the mapping.
//
// Before Linux 6.6 a file that is open for direct I/O cannot be mapped, so some opens use the page cache and some do
// not. The kernel does not drop pages before a direct write there; step 2 covers that, too.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "common/units.h"

namespace weightfs {

// How the data of one open reaches the kernel.
// kHot: through the page cache although the kernel could map the file without it.
enum class OpenMode : unsigned char { kDirect, kPageCache, kHot };

// The mode of an open(2) with `flags`. Where the kernel maps files that are open for direct I/O (`map_direct`), every
// open is direct I/O; elsewhere read-only and read-write opens need the page cache for their mappings, O_DIRECT and
// write-only opens do not.
OpenMode ChooseOpenMode(int flags, bool map_direct);

// Bytes [begin, end) of a file.
struct ByteRange {
  uint64_t begin = 0, end = 0;
  bool Overlaps(const ByteRange& other) const { return begin < other.end && other.begin < end; }
  bool operator==(const ByteRange&) const = default;
};

// The pages that the kernel may have of one inode. Thread-safe; shared by the open handles of the inode.
class InodePages {
 public:
  // Records one direct write from before the store takes it until no stale page of its range is left. Move-only; used
  // by one thread at a time. The InodePages outlives it.
  class DirectWrite {
   public:
    DirectWrite() = default;
    // Waits for write-backs of the range that the store is taking.
    DirectWrite(InodePages& pages, ByteRange range);
    DirectWrite(DirectWrite&& other) noexcept;
    DirectWrite& operator=(DirectWrite&& other) noexcept;
    ~DirectWrite() { End(); }

    // The store has the bytes: from here on write-backs of the range leave them out.
    void MarkApplied();
    // No page of the range is stale, or the write failed.
    void End();

   private:
    InodePages* pages_ = nullptr;
    uint64_t id_ = 0;
  };

  // Records a write-back of dirty pages while the store takes it. Not copyable.
  class WriteBack {
   public:
    // Waits for direct writes of the range that the store is taking.
    WriteBack(InodePages& pages, ByteRange range);
    ~WriteBack() { End(); }
    WriteBack(const WriteBack&) = delete;
    WriteBack& operator=(const WriteBack&) = delete;

    // The parts of the range that the store takes, in order: all of it but applied direct writes.
    const std::vector<ByteRange>& pieces() const { return pieces_; }
    // The store has the pieces.
    void End();

   private:
    InodePages* pages_;
    uint64_t id_ = 0;
    std::vector<ByteRange> pieces_;
  };

  // The kernel asks for data for its page cache. Called before the store reads it: either that read sees a direct write
  // or the writer sees the fill.
  void NoteFill() EXCLUDES(mutex_);
  // True if pages may hold content from before a direct write that the store has taken by now. False also tells the
  // next open through the page cache that pages left from earlier opens are stale.
  bool MayBeStaleAfterWrite() EXCLUDES(mutex_);
  // True if a program may have a shared writable mapping. A mapping keeps its open alive.
  bool MayHoldChanges() const EXCLUDES(mutex_);
  // True if such a mapping may have pages in memory.
  bool MayHaveDirtyPages() const EXCLUDES(mutex_);

 private:
  friend class PageCacheTracker;
  struct Record {
    uint64_t id = 0;
    ByteRange range;
    bool applied = false;  // of direct writes
  };

  // True if the pages that the kernel may still have are what the store holds; for opens through the page cache.
  bool AddOpen(OpenMode mode, bool mappable) EXCLUDES(mutex_);
  // True if nothing needs to be remembered of the inode.
  bool RemoveOpen(OpenMode mode, bool mappable) EXCLUDES(mutex_);
  bool IsOpen() const EXCLUDES(mutex_);
  void Remove(std::vector<Record> InodePages::*records, uint64_t id) EXCLUDES(mutex_);
  bool HasOverlapLocked(const std::vector<Record>& records, ByteRange range) const REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::condition_variable changed_;  // a record was applied or removed
  unsigned opens_ GUARDED_BY(mutex_) = 0, cached_ GUARDED_BY(mutex_) = 0, mappable_ GUARDED_BY(mutex_) = 0;
  bool kept_ GUARDED_BY(mutex_) = false;    // pages left from opens through the page cache are valid
  bool filled_ GUARDED_BY(mutex_) = false;  // since the first of the present opens
  unsigned waiters_ GUARDED_BY(mutex_) = 0;
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
  std::vector<Record> direct_writes_ GUARDED_BY(mutex_), write_backs_ GUARDED_BY(mutex_);
};

// Finds the InodePages of an inode. Thread-safe.
class PageCacheTracker {
 public:
  struct Opened {
    std::shared_ptr<InodePages> pages;
    bool keep = false;  // of an open through the page cache: pages that the kernel may have are valid
  };

  // An open begins or ends. `mappable`: it allows a shared writable mapping.
  Opened Open(InodeId ino, OpenMode mode, bool mappable) EXCLUDES(mutex_);
  void Close(InodeId ino, OpenMode mode, bool mappable) EXCLUDES(mutex_);

  // The pages of an inode that is open, or that the kernel may have pages of; null otherwise.
  std::shared_ptr<InodePages> Find(InodeId ino) EXCLUDES(mutex_);
  // The inodes that may have a shared writable mapping.
  std::vector<InodeId> AllThatMayHoldChanges() EXCLUDES(mutex_);

  // The kernel dropped the inode, and its pages with it.
  void Forget(InodeId ino) EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::unordered_map<InodeId, std::shared_ptr<InodePages>> inodes_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
