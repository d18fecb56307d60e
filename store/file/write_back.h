// SPDX-License-Identifier: Apache-2.0
// From dirty blocks to device writes: late allocation, checksums, submission, completion.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "engine/device_set.h"
#include "store/file/file_state.h"
#include "store/file/inode.h"
#include "store/space/space_manager.h"

namespace weightfs {

class WriteBack;

// Device writes made under an inode's mutex. Send, without any mutex, computes their checksums and submits them; until
// then their memory is not on its way, so nobody waits for memory or for a commit with an unsent batch in hand.
class WriteBatch {
 public:
  explicit WriteBatch(WriteBack& owner) : owner_(owner) {}
  ~WriteBatch() { Send(); }
  WriteBatch(const WriteBatch&) = delete;
  WriteBatch& operator=(const WriteBatch&) = delete;
  void Send();

 private:
  friend class WriteBack;
  WriteBack& owner_;
  std::vector<IoRequest*> operations_;  // WriteBack::Operation
};

// Thread-safe.
class WriteBack {
 public:
  WriteBack(DeviceSet& devices, SpaceManager& space) : devices_(devices), space_(space) {}

  // Allocates and freezes every unfrozen block of [first, end), and of the windows these lie in; the writes go out with
  // `batch`. `stream`: more of this file is coming. On an error (the space invariant is broken) the file is torn.
  void SubmitRange(const InodePtr& inode, FileBlock first, FileBlock end, bool stream, WriteBatch* batch)
      REQUIRES(inode->mutex);
  void SubmitAll(const InodePtr& inode, WriteBatch* batch) REQUIRES(inode->mutex);

  // Puts the checksums of every write that is not sent yet into the table: before a seal takes it.
  void SumAll(Inode& inode) REQUIRES(inode.mutex);

  // The same for the writes that touch a range: what is set for it afterwards is newer. Under the inode's mutex.
  void SumOverlapping(FileState& file, FileBlock first, BlockCount count);

  // The file has unfrozen blocks that memory pressure may send out.
  void NoteDirty(const InodePtr& inode) REQUIRES(inode->mutex);

  // Sends out all of the file that has been dirty longest; false when there is none. Called without locks.
  bool RelievePressure() EXCLUDES(mutex_);

  // Runs `next` when fewer than `limit` bytes are on their way to the devices: now, or on a completion thread. Whoever
  // acknowledges writes through it keeps writers from filling all memory with what a slow device has not taken yet.
  void WhenBelow(ByteCount limit, std::function<void()> next) EXCLUDES(mutex_);

  // `torn` runs, under the inode's mutex, when a write of a file has failed that was whole before: it is to be put back
  // to its last commit. Before the first write.
  void OnTorn(std::function<void(const InodePtr&)> torn) { torn_ = std::move(torn); }

  uint64_t written_bytes() const { return written_bytes_.load(); }

 private:
  friend class WriteBatch;
  class Operation;
  void SubmitGroup(const InodePtr& inode, FileBlock first, BlockCount count, bool stream, WriteBatch* batch)
      REQUIRES(inode->mutex);
  void WriteRun(const InodePtr& inode, FileBlock first, const DeviceRun& run, WriteBatch* batch) REQUIRES(inode->mutex);
  void Sum(Operation& operation);
  void Complete(Operation& operation, Result<void> result);
  void Tear(const InodePtr& inode) REQUIRES(inode->mutex);
  void NoteInFlight(int64_t bytes) EXCLUDES(mutex_);

  DeviceSet& devices_;
  SpaceManager& space_;
  std::atomic<uint64_t> written_bytes_{0};
  std::function<void(const InodePtr&)> torn_;
  std::atomic<uint64_t> next_write_{1};
  Mutex mutex_;
  std::deque<InodePtr> dirty_ GUARDED_BY(mutex_);
  uint64_t in_flight_ GUARDED_BY(mutex_) = 0;                                          // bytes
  std::deque<std::pair<uint64_t, std::function<void()>>> waiting_ GUARDED_BY(mutex_);  // by limit, first come first
};

// Keeps attributes.blocks and the space statistics in step with the mapping around a change of it.
class MappedBlocksUpdate {
 public:
  MappedBlocksUpdate(Inode& inode, SpaceManager& space) REQUIRES(inode.mutex);
  ~MappedBlocksUpdate() NO_THREAD_SAFETY_ANALYSIS;
  MappedBlocksUpdate(const MappedBlocksUpdate&) = delete;
  MappedBlocksUpdate& operator=(const MappedBlocksUpdate&) = delete;

 private:
  Inode& inode_;
  SpaceManager& space_;
  const BlockCount before_;
};

}  // namespace weightfs
