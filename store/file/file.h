// SPDX-License-Identifier: Apache-2.0
// The in-memory state of a regular file besides its attributes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/units.h"
#include "meta/records.h"
#include "store/file/checksum_table.h"
#include "store/file/commit_state.h"
#include "store/file/dirty_map.h"
#include "store/file/extent_map.h"
#include "store/file/write_plan.h"
#include "store/space/space_manager.h"

namespace weightfs {

class ReadCache;

// The services that all files of a store share.
struct FileServices {
  SpaceManager& space;
  ReadCache& cache;
  std::shared_ptr<ExtentMemory> extent_memory;  // an inode that somebody keeps may outlive the store
};

// One device write of file blocks that are contiguous in memory and on the device. The blocks are under writeback.
struct BlockWrite {
  uint64_t id = 0;    // unique among the writes of one file
  uint64_t seal = 0;  // the number of seals before this write
  FileBlock first;
  DeviceRun run;
  Buffer buffer;  // keeps `data` alive
  std::byte* data = nullptr;

  std::span<const std::byte> bytes() const { return {data, ToBytes(run.run.count).value}; }
};

// The part of a file that one commit writes: its difference from the catalog at the time of the seal.
struct SealedFile {
  std::vector<ExtentMap::Change> changes;
  std::vector<DeviceRun> freed;  // freed once the commit is durable
  uint64_t size = 0, blocks = 0, version = 0;
  uint64_t shrunk_to = UINT64_MAX;  // delete checksum segments beyond this size
  bool flush_first = false;         // others wrote some of its blocks (File::ReplaceBlocks): flush before its batch
};

// The data of one file: mapping, dirty memory, checksums, reserved space, and commit state.
//
// Externally synchronized: every call is made under the inode's mutex. No call blocks except the Wait… functions,
// which release the mutex while they wait. No call reads the catalog or a device. The caller fetches everything that
// may fail without the mutex (WritePlan, ChecksumSegments); a call that changes the file cannot fail.
class File {
 public:
  // `attributes` are the inode's. File keeps their size and blocks, and the space statistics, consistent with the
  // mapping.
  File(InodeId id, InodeRecord* attributes, const FileServices& services)
      : id_(id), attributes_(*attributes), services_(services) {}
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // While `leaving`, the space statistics count the file's blocks as free.
  void SetLeaving(bool leaving) {
    leaving_ = leaving;
    CountLeaving();
  }

  // --- Loading

  // False until the extents are read from the catalog, and again after Revert. While it is false, only the commit
  // state, the write error and the write counts are valid.
  bool loaded() const { return loaded_; }
  void Load(ExtentMap extents);

  // --- Queries

  const ExtentMap& extents() const { return extents_; }
  const DirtyMap& dirty() const { return dirty_; }
  const CommitState& commit() const { return commit_; }
  WriteErrorState& write_error() { return write_error_; }
  const WriteErrorState& write_error() const { return write_error_; }
  BlockCount reserved() const { return reservation_.held(); }
  // What the next commit frees.
  const std::vector<DeviceRun>& freed() const { return freed_; }
  // See ChecksumTable::Get.
  Result<bool> Checksums(FileBlock first, std::span<uint32_t> out, ChecksumSegments& loaded,
                         std::vector<uint64_t>* missing) {
    return checksums_.Get(first, out, loaded, missing);
  }
  // True when the catalog does not have the current state of the file, or an error waits to be reported.
  bool Uncommitted() const { return commit_.uncommitted() || write_error_.error(); }
  // The location of the block before `first`; new blocks are allocated next to it.
  std::optional<DeviceRun> RunBefore(FileBlock first) const;

  // --- Planning a change of bytes. These functions change nothing but the plan.

  // Copies `size` bytes (zeros when `data` is null) to `offset`.
  void PlanCopy(uint64_t offset, uint64_t size, const std::byte* data, Staging staging, WritePlan* plan) const;
  // Zeroes [from, to) inside one block if the block has content.
  void PlanZeros(uint64_t from, uint64_t to, WritePlan* plan) const;
  // Adopts `buffer` as dirty memory of the file. `data` begins in it at `offset % kBlockSize`, so the buffer's pages
  // are blocks of the file. Bytes that do not fill a block are copied.
  void PlanAdoption(uint64_t offset, std::span<const std::byte> data, const Buffer& buffer, WritePlan* plan) const;

  // --- Changing

  // Applies a plan that lacks nothing. Does not move the size.
  void Apply(WritePlan plan);
  // The number of bytes written in sequence up to `end`, if [offset, end) is written next.
  uint64_t SequenceAt(uint64_t offset, uint64_t end) const;
  void NoteWritten(uint64_t end, uint64_t sequence);
  // Moves the end of the file. If the new size is not larger, unmaps everything beyond it; the bytes of the last block
  // beyond it are already zero.
  void SetSize(uint64_t size);
  // Drops the blocks of [first, end), in memory and on the devices.
  void Unmap(FileBlock first, FileBlock end);
  // Maps unwritten runs, which read as zeros, to a hole that begins at `first`.
  void MapUnwritten(FileBlock first, std::span<const DeviceRun> runs);
  // Maps runs that already hold their content in place of the file's blocks from `first` on. Takes one checksum per
  // block.
  void ReplaceBlocks(FileBlock first, std::span<const DeviceRun> runs, std::span<const uint32_t> checksums);
  // Updates the times after a change of data. Returns true when the caller must notify the committer.
  [[nodiscard]] bool Touch();
  // Records a truncation by an open that will rewrite the file. Returns the same as Touch.
  [[nodiscard]] bool BeginReplacement();
  // Records that the last writer has closed the file.
  void Settle() { commit_.Settle(); }

  // --- Writeback

  // Allocates space for all dirty blocks of [first, end), and for the other dirty blocks of their buffers, and appends
  // their device writes to `writes`. `stream`: more of this file follows. Returns false when reserved space is missing;
  // then the caller reports the file as failed.
  [[nodiscard]] bool StartWriteback(FileBlock first, FileBlock end, bool stream, std::vector<BlockWrite>* writes);
  // Sets the checksums of a write, computed without the mutex. Does nothing when they were needed, and computed,
  // earlier.
  void SetChecksums(const BlockWrite& write, std::span<const uint32_t> checksums);
  // Records the end of a write, successful or not.
  void FinishWrite(const BlockWrite& write);
  // The first block of the run of dirty blocks that ends at `first`; `first` when there is none.
  FileBlock DirtyBefore(FileBlock first) const;
  // The file's position in the queue of dirty files, 0 when it is not queued. Used by WriteBack only.
  uint64_t queue_position = 0;

  // --- Commit

  // Returns true once before each seal: when the next commit would be so large that its batch delays those of others.
  // Then commit the file early. A replacement is never committed early.
  bool NeedsCommit();
  // Takes the difference from the catalog; nullopt when there is none. No block may be dirty.
  std::optional<SealedFile> Seal();
  // These wait for the writes of the last seal; for all writes; until no block of a range is under writeback.
  void WaitForSealedWrites(MutexLock& lock);
  void WaitForAllWrites(MutexLock& lock);
  // Waits for the writes of the range that have begun, not for later ones.
  void WaitForRange(MutexLock& lock, FileBlock first, BlockCount count);
  // Blocks that are to be written, and that no extent maps yet.
  BlockCount WithoutExtent() const;
  // Waits for the end of a commit in progress, or until commits have failed. Call WakeCommits after setting `failed`.
  void WaitForCommit(MutexLock& lock, const std::atomic<bool>& failed);
  void WakeCommits() { drained_.notify_all(); }
  // See ChecksumTable::AppendSealed.
  Result<bool> AppendChecksums(uint64_t deleted, ChecksumSegments& loaded, std::vector<uint64_t>* missing,
                               KvBatch* batch) {
    return checksums_.AppendSealed(id_, deleted, loaded, missing, batch);
  }
  // Records that the sealed state is in the catalog.
  void FinishCommit();
  // Records that the catalog has the file's records again, which it had lacked. Nothing is uncommitted.
  void NoteRestored() { checksums_.Clear(); }
  // Drops everything but the pending error after a failed write. The file then has its committed state. Returns the
  // blocks that no commit has.
  std::vector<DeviceRun> Revert(uint64_t committed_size, uint64_t committed_blocks);
  // Drops the content of a deleted inode. `committed` are the blocks that the catalog had; it is empty when the file is
  // loaded. Returns all blocks to free once the deletion is durable.
  std::vector<DeviceRun> Drop(std::vector<DeviceRun> committed);

 private:
  class MappingUpdate;
  // Blocks under writeback whose checksums are not in the table yet. The owner of the write computes them without the
  // mutex.
  struct PendingChecksums {
    uint64_t write;
    FileBlock first;
    std::span<const std::byte> data;  // whole blocks; nobody changes them
  };

  void CountLeaving();
  uint64_t EntryBytes() const;
  void CountUncommitted();
  bool HasContent(FileBlock block) const;
  BlockCount BlocksWithoutSpace(FileBlock first, FileBlock end) const;
  void PlanSpace(FileBlock first, FileBlock end, WritePlan* plan) const;
  void PlanFill(FileBlock block, bool of_dirty, WritePlan* plan) const;
  void PlanMemory(FileBlock first, FileBlock end, Staging staging, WritePlan* plan) const;
  void ApplyAdoption(WritePlan::Adoption adoption);
  void MapNew(FileBlock first, const DeviceRun& run, uint32_t flags);
  bool WritebackGroup(FileBlock first, BlockCount count, bool stream, std::vector<BlockWrite>* writes);
  void WritebackRun(FileBlock first, const DeviceRun& run, std::vector<BlockWrite>* writes);
  void ComputePendingChecksums(FileBlock first, BlockCount count);
  void InvalidateCache(uint64_t offset, uint64_t end);
  void ForgetContent();
  void CountExtents() {
    services_.extent_memory->Change(std::exchange(counted_extents_, extents_.size()), extents_.size());
  }

  const InodeId id_;
  InodeRecord& attributes_;
  const FileServices services_;

  bool leaving_ = false;
  uint64_t counted_leaving_ = 0;  // blocks
  bool loaded_ = false;
  ExtentMap extents_;
  size_t counted_extents_ = 0;
  ChecksumTable checksums_;
  DirtyMap dirty_;
  SpaceReservation reservation_;     // at least one block per dirty block that needs space
  std::vector<DeviceRun> freed_;     // unmapped since the last seal
  std::vector<DeviceRun> new_;       // mapped since then, perhaps unmapped again; sealed_: before, in no commit yet
  std::vector<DeviceRun> sealed_;
  uint64_t shrunk_to_ = UINT64_MAX;  // the smallest size since the last seal
  bool flush_first_ = false;         // ReplaceBlocks since the last seal
  bool needed_commit_ = false;       // since the last seal
  uint64_t sealed_bytes_ = 0, counted_uncommitted_ = 0;  // of the log: for the commit in progress, for all changes

  CommitState commit_;
  WriteErrorState write_error_;

  // Device writes in progress that started after the last seal, and before it. `drained_` is notified when either count
  // reaches 0, at the end of each write while somebody waits for a range, and at the end of a commit.
  uint64_t seals_ = 0, next_write_ = 1;
  uint64_t writes_since_seal_ = 0, writes_before_seal_ = 0;
  unsigned range_waiters_ = 0;
  std::condition_variable drained_;
  std::vector<PendingChecksums> pending_checksums_;  // a few at most; none of these writes has been submitted yet

  // The end of the last sequential write, and the number of bytes written in sequence up to there.
  uint64_t write_next_ = 0, write_sequence_ = 0;
};

// Keeps the inode's block count and the space statistics consistent with the mapping across a change.
class File::MappingUpdate {
 public:
  explicit MappingUpdate(File& file) : file_(file), before_(file.extents_.mapped()) {}
  ~MappingUpdate() {
    const BlockCount after = file_.extents_.mapped();
    file_.attributes_.blocks = after.value;
    if (after < before_) file_.CountLeaving();  // no block counts as free twice
    file_.services_.space.AddUsed(static_cast<int64_t>(after.value) - static_cast<int64_t>(before_.value));
    file_.CountLeaving();
    file_.CountExtents();
    file_.CountUncommitted();
  }
  MappingUpdate(const MappingUpdate&) = delete;
  MappingUpdate& operator=(const MappingUpdate&) = delete;

 private:
  File& file_;
  const BlockCount before_;
};

}  // namespace weightfs
