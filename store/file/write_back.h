// SPDX-License-Identifier: Apache-2.0
// The path from dirty files to device writes: memory pressure, checksums, submission, completion.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "common/assert.h"
#include "common/mutex.h"
#include "common/result.h"
#include "engine/device_set.h"
#include "store/file/file.h"
#include "store/file/inode.h"

namespace weightfs {

// Device writes of one file that were started under its mutex and are not submitted yet. Until then nothing frees their
// memory, so no thread may wait for memory, space or a commit while it holds such writes. Move-only; must be empty when
// destroyed.
class PendingWrites {
 public:
  PendingWrites() = default;
  PendingWrites(PendingWrites&& other) noexcept
      : inode_(std::move(other.inode_)), writes_(std::exchange(other.writes_, {})) {}
  PendingWrites& operator=(PendingWrites&& other) noexcept {
    std::swap(inode_, other.inode_);
    std::swap(writes_, other.writes_);
    return *this;
  }
  ~PendingWrites() { WEIGHTFS_ASSERT(writes_.empty()); }
  bool empty() const { return writes_.empty(); }

 private:
  friend class WriteBack;
  InodePtr inode_;
  std::vector<BlockWrite> writes_;
};

// Thread-safe.
class WriteBack {
 public:
  explicit WriteBack(DeviceSet& devices) : devices_(devices) {}

  // Calls File::StartWriteback and appends to `writes`, which must belong to this file alone. Marks the file as failed
  // when its reserved space is missing.
  void Start(const InodePtr& inode, FileBlock first, FileBlock end, bool stream, PendingWrites* writes)
      REQUIRES(inode->mutex);
  void StartAll(const InodePtr& inode, PendingWrites* writes) REQUIRES(inode->mutex);

  // Computes the checksums of the writes and submits them. Leaves `writes` empty. Called without the file's mutex.
  // `waits`: the caller waits for them next, and for no others, so a single small one is not worth another thread.
  void Submit(PendingWrites* writes, bool waits = false) EXCLUDES(mutex_);

  // Adds the file to the queue of dirty files when it has dirty blocks, and removes it when it has none. Start calls
  // this itself.
  void UpdateQueue(const InodePtr& inode) REQUIRES(inode->mutex);

  // Writes back the file that has been dirty longest; returns false when no file is dirty. Called without locks.
  bool RelievePressure() EXCLUDES(mutex_);

  // Runs `next` when fewer than `limit` bytes are in flight to the devices: now, or on a completion thread. A caller
  // that acknowledges writes through this call keeps writers from filling all memory ahead of a slow device.
  void WhenBelow(ByteCount limit, std::function<void()> next) EXCLUDES(mutex_);

  // `failed` runs under the inode's mutex when a file enters a failed state; the file must then be reverted to its last
  // commit. Set it before the first write.
  void OnFailed(std::function<void(const InodePtr&)> failed) { failed_ = std::move(failed); }

  uint64_t written_bytes() const { return written_bytes_.load(); }

 private:
  class Operation;
  void Complete(const InodePtr& inode, const BlockWrite& write, const Result<void>& result);
  void Fail(const InodePtr& inode) REQUIRES(inode->mutex);
  void NoteInFlight(int64_t bytes) EXCLUDES(mutex_);

  DeviceSet& devices_;
  std::atomic<uint64_t> written_bytes_{0};
  std::function<void(const InodePtr&)> failed_;
  Mutex mutex_;
  std::map<uint64_t, InodePtr> dirty_ GUARDED_BY(mutex_);  // by File::queue_position: longest dirty first
  uint64_t last_position_ GUARDED_BY(mutex_) = 0;
  uint64_t in_flight_ GUARDED_BY(mutex_) = 0;                                          // bytes
  std::deque<std::pair<uint64_t, std::function<void()>>> waiting_ GUARDED_BY(mutex_);  // (limit, next), in FIFO order
};

}  // namespace weightfs
