// SPDX-License-Identifier: Apache-2.0
// The read leases of a file that stays open for many small reads. A file whose checksums fit in the memory limit has
// one lease, of the whole file. A larger file is leased in windows of equal size, when they are first used; the windows
// that were used longest ago are given back.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "client/lease/lease_connection.h"
#include "client/lease/leased_blocks.h"
#include "client/target.h"
#include "common/mutex.h"
#include "common/result.h"

namespace weightfs::client {

// Thread-safe. All windows are of one state of the file, that of Open.
class LeaseWindows : public std::enable_shared_from_this<LeaseWindows> {
 public:
  // The maximum number of windows held at once: leases and file descriptors are limited.
  static constexpr size_t kMost = 32;

  // `file` is open for reading on a weightfs mount. `memory` limits the checksums that are kept, in bytes; a window has
  // at least one block. Takes the first lease; the errors are those of a lease. EAGAIN: the file changed meanwhile.
  static Result<std::shared_ptr<LeaseWindows>> Open(std::shared_ptr<const Access> file,
                                                    std::shared_ptr<LeaseConnections> connections, uint64_t memory);

  uint64_t file_size() const { return file_.size; }      // bytes, at the time of Open
  uint64_t window_size() const { return window_size_; }  // bytes, a multiple of kBlockSize

  // Returns the file for one operation that reads in these windows alone. They stay leased until its end. Leases the
  // windows that are not leased yet. `indices` are ascending, different, and at most kMost. Waits until other
  // operations have ended if together they would hold more than kMost windows; in a callback of an operation, returns
  // EAGAIN instead. ESTALE: the file has changed since Open, so a window of that state cannot be leased any more.
  Result<std::unique_ptr<Access>> Pin(std::span<const uint64_t> indices) EXCLUDES(mutex_);

 private:
  class Pinned;
  struct Window {
    uint64_t index = 0;  // it begins at byte index * window_size()
    std::unique_ptr<Lease> lease;
    LeasedBlocks blocks;
  };
  using WindowPtr = std::shared_ptr<const Window>;
  // Changes whenever the content does: a program can set back the time of modification, but not that of the last change
  // of the inode (ctime).
  struct Version {
    uint64_t size = 0;
    int64_t seconds = 0;
    uint32_t nanoseconds = 0;
    bool operator==(const Version&) const = default;
  };

  LeaseWindows(std::shared_ptr<const Access> file, std::shared_ptr<LeaseConnections> connections)
      : opened_(std::move(file)), connections_(std::move(connections)) {}

  Result<Version> CurrentVersion() const;
  Result<void> TakeFirst(uint64_t memory);
  Result<WindowPtr> Take(uint64_t index, uint64_t* file_size) const;
  Result<void> CheckUnchanged(uint64_t leased_size) const;
  // Fills in the null elements, until an error.
  Result<void> TakeMissing(std::span<const uint64_t> indices, std::vector<WindowPtr>& windows) const;
  // Moves the windows of `indices` to the end of kept_, and returns them; null for those that are not there.
  std::vector<WindowPtr> FindLocked(std::span<const uint64_t> indices) REQUIRES(mutex_);
  // Moves the oldest unused windows to `dropped` until `more` fit beside the others. Returns false, and drops nothing,
  // if too many are in use.
  bool MakeSpaceLocked(size_t more, std::vector<WindowPtr>* dropped) REQUIRES(mutex_);
  void Unpin(std::vector<WindowPtr> windows) EXCLUDES(mutex_);

  const std::shared_ptr<const Access> opened_;
  const std::shared_ptr<LeaseConnections> connections_;
  Version file_;              // immutable after Open
  uint64_t window_size_ = 0;  // immutable after Open
  Mutex mutex_;
  std::condition_variable changed_;
  bool leasing_ GUARDED_BY(mutex_) = false;         // a thread is taking leases
  std::vector<WindowPtr> kept_ GUARDED_BY(mutex_);  // most recently used last
};

}  // namespace weightfs::client
