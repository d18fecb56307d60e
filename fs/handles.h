// SPDX-License-Identifier: Apache-2.0
// Open files and directories. fuse_file_info::fh holds the address of a handle; the registry owns the handle.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "fs/close_tracker.h"
#include "fs/directory_listing.h"
#include "fs/page_cache.h"
#include "fs/user_limit.h"
#include "store/file/inode.h"
#include "store/store.h"

namespace weightfs {

// True if a file that was opened with these flags of open(2) may be written through the descriptor.
inline bool MayWrite(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

// The size of a file in bytes.
inline uint64_t SizeOf(Inode& inode) {
  MutexLock lock(inode.mutex);
  return inode.attributes.size;
}

// Immutable except for the stream, which has its own lock, the closes and the atomics. A request in progress holds a
// reference, so a handle outlives its release.
struct FileHandle : std::enable_shared_from_this<FileHandle> {
  InodePtr inode;
  std::shared_ptr<InodePages> pages;
  int flags = 0;  // flags of open(2)
  uint32_t user = 0;  // who opened it
  OpenMode mode = OpenMode::kDirect;
  ReadStream stream;
  UserLimit::Share share;  // of Filesystem::opens
  std::atomic<uint64_t> read_bytes{0};        // read through the daemon
  std::atomic<uint64_t> reported_failure{0};  // Store::Flush
  CloseTracker closes;

  bool writable() const { return MayWrite(flags); }
  // Allows shared writable mappings.
  bool mappable() const { return (flags & O_ACCMODE) == O_RDWR; }
};

// Thread-safe.
struct DirectoryHandle : std::enable_shared_from_this<DirectoryHandle> {
  // `listing_memory` is of DirectoryListing.
  DirectoryHandle(InodePtr opened, std::atomic<uint64_t>& listing_memory)
      : inode(std::move(opened)), listing(listing_memory) {}

  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kChangeBegins{30};
  static constexpr size_t kMostPermits = 64;

  // Permits one change by an ioctl or a lease: the kernel has just let the program through for a change of the
  // directory (WEIGHTFS_CHANGE_ATTRIBUTE), so its mount is not read-only. Several threads may share the handle.
  void PermitChange(Clock::time_point now = Clock::now()) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (permits_.size() == kMostPermits) permits_.pop_front();
    permits_.push_back(now + kChangeBegins);
  }
  bool TakeChange(Clock::time_point now = Clock::now()) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!permits_.empty() && permits_.front() <= now) permits_.pop_front();
    if (permits_.empty()) return false;
    permits_.pop_front();
    return true;
  }

  const InodePtr inode;
  DirectoryListing listing;
  UserLimit::Share share = {};  // of Filesystem::opens

 private:
  Mutex mutex_;
  std::deque<Clock::time_point> permits_ GUARDED_BY(mutex_);  // their ends, the earliest first
};

// Owns the handles from open to release. When a mount ends, the kernel may send no releases, even for files that were
// closed; then the owner of the registry closes the remaining handles. Thread-safe.
template <typename Handle>
class HandleRegistry {
 public:
  uint64_t Add(std::shared_ptr<Handle> handle) EXCLUDES(mutex_) {
    Handle* address = handle.get();
    MutexLock lock(mutex_);
    handles_.emplace(address, std::move(handle));
    return reinterpret_cast<uint64_t>(address);
  }

  // The handle for a number that Add returned and that was not removed.
  static std::shared_ptr<Handle> Get(uint64_t number) { return reinterpret_cast<Handle*>(number)->shared_from_this(); }

  // Returns null when the number is not, or no longer, a handle.
  std::shared_ptr<Handle> Remove(uint64_t number) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto node = handles_.extract(reinterpret_cast<Handle*>(number));
    return node.empty() ? nullptr : node.mapped();
  }

  std::vector<std::shared_ptr<Handle>> RemoveAll() EXCLUDES(mutex_) {
    std::vector<std::shared_ptr<Handle>> all;
    MutexLock lock(mutex_);
    for (auto& [address, handle] : handles_) all.push_back(std::move(handle));
    handles_.clear();
    return all;
  }

 private:
  Mutex mutex_;
  std::unordered_map<Handle*, std::shared_ptr<Handle>> handles_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
