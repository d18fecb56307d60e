// SPDX-License-Identifier: Apache-2.0
// Keeps the kernel's page cache coherent with writes that bypass it.
//
// A write through a direct I/O open, a leased commit, a copied or a zeroed range reaches the store while pages of the
// same file may be in the page cache, mapped by programs. The kernel drops the pages of the range before it sends a
// write, but a page fault before the store has that write brings back the old content. Readers of that page would see
// the old bytes forever, and once a program stores into the page, its write-back would overwrite bytes that were
// acknowledged. Therefore the store changes a range only while the kernel has no page of it:
//
//   1. If the kernel may have pages of the file, the daemon makes it drop those of the range first. The kernel writes
//      dirty pages back meanwhile, whole: what they hold was stored before the write.
//   2. From then on until the store has the write, requests to fill a page of the range wait. A request that arrives
//      during a drop is answered, because the kernel waits for it, and its pages are dropped once more.
//
// So each page is filled either before the write and dropped, or after it with the new content.
//
// One gap remains. The kernel keeps a page that a program changes between the write-back of the page and its removal,
// and it reports success all the same (fuse_reverse_inval_inode ignores the result of invalidate_inode_pages2_range).
// The next write-back of that page overwrites the direct write, whole.
//
// Before Linux 6.6 a file that is open for direct I/O cannot be mapped, so some opens use the page cache and some do
// not. The kernel does not drop pages before a direct write there; step 1 covers that, too.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs {

class Backing;

// The path of the data of one open. kHot: through the page cache, although the kernel could map the file without it.
// kPassthrough: without the daemon.
enum class OpenMode : unsigned char { kDirect, kPageCache, kHot, kPassthrough };

// The mode of an open(2) with `flags`. If the kernel can map files that are open for direct I/O (`map_direct`), every
// open is direct I/O. Otherwise read-only and read-write opens use the page cache for their mappings; O_DIRECT and
// write-only opens do not need it.
OpenMode ChooseOpenMode(int flags, bool map_direct);

// Bytes [begin, end) of a file.
struct ByteRange {
  uint64_t begin = 0, end = 0;
  bool Overlaps(const ByteRange& other) const { return begin < other.end && other.begin < end; }
  bool Contains(const ByteRange& other) const { return begin <= other.begin && other.end <= end; }
  bool operator==(const ByteRange&) const = default;
};

// The pages that the kernel may have of one inode. Thread-safe; shared by the open handles of the inode.
class InodePages {
 public:
  // Makes the kernel drop its pages of a range, and waits for it.
  using Drop = std::function<Result<void>(const ByteRange&)>;
  // kIfFilled: the kernel drops pages that are left from earlier opens itself. kAlways: it does not.
  enum class DropPolicy : unsigned char { kIfFilled, kAlways };

  // Keeps pages of a range out of the page cache while the store changes that range. Move-only; used by one thread at a
  // time. The InodePages outlives it.
  class DirectWrite {
   public:
    DirectWrite() = default;
    // Unless must_drop(), the kernel gets no page of the range from here on.
    DirectWrite(InodePages& pages, ByteRange range, DropPolicy policy = DropPolicy::kIfFilled);
    DirectWrite(DirectWrite&& other) noexcept;
    DirectWrite& operator=(DirectWrite&& other) noexcept;
    ~DirectWrite() { End(); }

    // True if the kernel may have pages of the range: the caller calls DropPages before it changes the store.
    bool must_drop() const { return must_drop_; }
    // The kernel has no page of the range on success, and gets none. Waits for the other drops of the inode. After an
    // error the store must not be changed.
    Result<void> DropPages(const Drop& drop);
    // Call this when the store has the change, or will not get it. Runs the fills that waited.
    void End();

   private:
    InodePages* pages_ = nullptr;
    ByteRange range_;
    uint64_t id_ = 0;  // 0: not recorded
    bool must_drop_ = false;
  };

  // The kernel asks for data for its page cache. True if the store may be read at once; otherwise `fill` runs after the
  // direct write that the request waits for.
  bool BeginFill(ByteRange range, std::function<void()> fill) EXCLUDES(mutex_);
  // True if a program may have a shared writable mapping. A mapping keeps its open alive.
  bool MayHoldChanges() const EXCLUDES(mutex_);
  bool is_open() const EXCLUDES(mutex_);
  // True if such a mapping may have pages in memory.
  bool MayHaveDirtyPages() const EXCLUDES(mutex_);

 private:
  friend class PageCacheTracker;
  struct Fill {
    ByteRange range;
    std::function<void()> run;
  };
  struct Record {
    uint64_t id = 0;
    ByteRange range;
    std::vector<Fill> waiting;
  };

  // True if the pages that the kernel may still have are what the store holds; for opens through the page cache. The
  // first of the present opens sets the backing of all.
  bool AddOpen(OpenMode mode, bool mappable, std::shared_ptr<Backing>* backing) EXCLUDES(mutex_);
  // True if nothing needs to be remembered of the inode. Moves the backing that nobody uses any more to `unused`.
  bool RemoveOpen(OpenMode mode, bool mappable, std::shared_ptr<Backing>* unused) EXCLUDES(mutex_);
  bool IsInUse() const EXCLUDES(mutex_);
  uint64_t RecordLocked(ByteRange range) REQUIRES(mutex_);
  void Remove(uint64_t id) EXCLUDES(mutex_);

  mutable Mutex mutex_;
  unsigned opens_ GUARDED_BY(mutex_) = 0, cached_ GUARDED_BY(mutex_) = 0, mappable_ GUARDED_BY(mutex_) = 0;
  bool kept_ GUARDED_BY(mutex_) = false;    // pages left from opens through the page cache are valid
  bool filled_ GUARDED_BY(mutex_) = false;  // since the first of the present opens
  std::shared_ptr<Backing> backing_ GUARDED_BY(mutex_);
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
  std::vector<Record> direct_writes_ GUARDED_BY(mutex_);

  // One direct write at a time makes the kernel drop pages. Two would each wait for a fill that the other holds back.
  std::condition_variable drop_ended_;
  uint64_t dropping_ GUARDED_BY(mutex_) = 0;          // id of its record; 0: none
  std::deque<ByteRange> to_drop_ GUARDED_BY(mutex_);  // the first one is in progress
};

// Finds the InodePages of an inode. Thread-safe.
class PageCacheTracker {
 public:
  struct Opened {
    std::shared_ptr<InodePages> pages;
    bool keep = false;  // of an open through the page cache: pages that the kernel may have are valid
    std::shared_ptr<Backing> backing;  // not null: the open is a passthrough one, whatever mode it asked for
  };

  // Call these when an open begins or ends. `mappable`: it allows a shared writable mapping. The kernel refuses an open
  // with another backing, or with none, than the other opens of the inode have (EIO). So `backing`, which may be null,
  // counts for an inode without other opens alone.
  Opened Open(InodeId ino, OpenMode mode, bool mappable, std::shared_ptr<Backing> backing = nullptr) EXCLUDES(mutex_);
  void Close(InodeId ino, OpenMode mode, bool mappable) EXCLUDES(mutex_);

  // The pages of an inode that is open, or that the kernel may have pages of; null otherwise.
  std::shared_ptr<InodePages> Find(InodeId ino) EXCLUDES(mutex_);
  // The inodes that may have a shared writable mapping.
  std::vector<InodeId> AllThatMayHoldChanges() EXCLUDES(mutex_);

  // Call this when the kernel has dropped the inode, and its pages with it.
  void Forget(InodeId ino) EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::unordered_map<InodeId, std::shared_ptr<InodePages>> inodes_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
