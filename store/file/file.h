// SPDX-License-Identifier: Apache-2.0
// What a regular file holds in memory besides its attributes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <optional>
#include <span>
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

// What the files of a store share.
struct FileServices {
  SpaceManager& space;
  ReadCache& cache;
};

// One device write of file blocks that lie together in memory and on the device. The blocks are under writeback.
struct BlockWrite {
  uint64_t id = 0;    // of the writes of one file
  uint64_t seal = 0;  // how often the file had been sealed
  FileBlock first;
  DeviceRun run;
  Buffer buffer;  // keeps `data`
  std::byte* data = nullptr;

  std::span<const std::byte> bytes() const { return {data, ToBytes(run.run.count).value}; }
};

// What one commit takes of a file: its difference from the catalog at one moment.
struct SealedFile {
  std::vector<ExtentMap::Change> changes;
  std::vector<DeviceRun> freed;  // free once the commit is durable
  uint64_t size = 0, blocks = 0, version = 0;
  uint64_t shrunk_to = UINT64_MAX;  // checksum segments behind this size are to be deleted
};

// The data of one file: mapping, dirty memory, checksums, reserved space, and how far the catalog knows all that.
//
// Externally synchronized: every call is made under the inode's mutex, and none blocks, but for the three Wait…, which
// release the mutex meanwhile. No call reads the catalog or a device. What may fail is fetched by the caller without
// the mutex (WritePlan, ChecksumSegments); what changes the file cannot fail.
class File {
 public:
  // `attributes` are the inode's: File keeps its size and blocks, and the space statistics, in step with the mapping.
  File(InodeId id, InodeRecord* attributes, const FileServices& services)
      : id_(id), attributes_(*attributes), services_(services) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // --- Loading

  // False until the extents were read from the catalog, and again after a Revert. Only commit state, write error and
  // the counts of writes are valid before.
  bool loaded() const { return loaded_; }
  void Load(ExtentMap extents);

  // --- Looking

  const ExtentMap& extents() const { return extents_; }
  const DirtyMap& dirty() const { return dirty_; }
  const CommitState& commit() const { return commit_; }
  WriteErrorState& write_error() { return write_error_; }
  const WriteErrorState& write_error() const { return write_error_; }
  BlockCount reserved() const { return reservation_.held(); }
  // ChecksumTable::Get.
  Result<bool> Checksums(FileBlock first, std::span<uint32_t> out, ChecksumSegments& loaded,
                         std::vector<uint64_t>* missing) {
    return checksums_.Get(first, out, loaded, missing);
  }
  // True when the catalog does not have the file as it is, or an error waits to be reported.
  bool Uncommitted() const { return commit_.uncommitted() || write_error_.error(); }
  // Where the block before `first` lies: new blocks go next to it.
  std::optional<DeviceRun> RunBefore(FileBlock first) const;

  // --- Planning a change of bytes. Nothing changes, but for the plan.

  // Copies `size` bytes (zeros where `data` is null) to `offset`.
  void PlanCopy(uint64_t offset, uint64_t size, const std::byte* data, Staging staging, WritePlan* plan) const;
  // Zeroes [from, to) inside one block, where the block has anything to lose.
  void PlanZeros(uint64_t from, uint64_t to, WritePlan* plan) const;
  // Makes `buffer` itself dirty memory of the file: `data` lies in it at `offset % kBlockSize`, so its pages are blocks
  // of the file. Bytes that fill no block are copied.
  void PlanAdoption(uint64_t offset, std::span<const std::byte> data, const Buffer& buffer, WritePlan* plan) const;

  // --- Changing

  // Carries out a plan that lacks nothing. Does not move the size.
  void Apply(WritePlan plan);
  // The sequence that a write of [offset, end) belongs to: how many bytes were written in sequence up to `end`.
  uint64_t SequenceAt(uint64_t offset, uint64_t end) const;
  void NoteWritten(uint64_t end, uint64_t sequence);
  // Moves the end of the file. What lies behind a smaller or equal one is unmapped; the bytes of the last block behind
  // it are zeros already.
  void SetSize(uint64_t size);
  // Forgets the blocks of [first, end), in memory and on the devices.
  void Unmap(FileBlock first, FileBlock end);
  // Maps runs that hold zeros (unwritten extents) at a hole that begins at `first`.
  void MapUnwritten(FileBlock first, std::span<const DeviceRun> runs);
  // Maps runs whose content is on the devices already, in place of what the file has from `first` on. One checksum for
  // each block.
  void ReplaceBlocks(FileBlock first, std::span<const DeviceRun> runs, std::span<const uint32_t> checksums);
  // Sets the times of a change of data. Returns true when the committer must hear of the file.
  [[nodiscard]] bool Touch();
  // The file was truncated to nothing by an open that will write it anew. Returns what Touch does.
  [[nodiscard]] bool BeginReplacement();

  // --- Writeback

  // Appends the device writes of every dirty block of [first, end), and of the buffers these lie in, to `writes`: their
  // places are allocated now. `stream`: more of this file is coming. False when space that was reserved is not there;
  // the caller reports the file as failed.
  [[nodiscard]] bool StartWriteback(FileBlock first, FileBlock end, bool stream, std::vector<BlockWrite>* writes);
  // The checksums of a write, computed without the mutex. Does nothing when somebody else needed them earlier.
  void SetChecksums(const BlockWrite& write, std::span<const uint32_t> checksums);
  // The write has ended, well or not.
  void FinishWrite(const BlockWrite& write);
  // The first block of the dirty blocks that lie right before `first`; `first` where there are none.
  FileBlock DirtyBefore(FileBlock first) const;
  // The file's entry in the queue of dirty files, 0 where it has none. WriteBack's alone.
  uint64_t queue_position = 0;

  // --- Commit

  // Takes the difference from the catalog; nullopt when there is none. No block is dirty.
  std::optional<SealedFile> Seal();
  // Waits for the writes of the last seal; for all writes; until no block of a range is under writeback.
  void WaitForSealedWrites(MutexLock& lock);
  void WaitForAllWrites(MutexLock& lock);
  void WaitForRange(MutexLock& lock, FileBlock first, BlockCount count);
  // ChecksumTable::AppendSealed.
  Result<bool> AppendChecksums(ChecksumSegments& loaded, std::vector<uint64_t>* missing, KvBatch* batch) {
    return checksums_.AppendSealed(id_, loaded, missing, batch);
  }
  // What Seal took is in the catalog.
  void FinishCommit();
  // After a failed write: forgets everything but the pending error. The catalog says what the file is.
  void Revert(uint64_t committed_size, uint64_t committed_blocks);
  // The inode is deleted; `committed` are the blocks that the catalog had, empty when the file is loaded. Returns all
  // blocks that are free once the deletion is durable.
  std::vector<DeviceRun> Drop(std::vector<DeviceRun> committed);

 private:
  class MappingUpdate;
  // Blocks under writeback whose checksums are not in the table yet; the owner of the write computes them without the
  // mutex.
  struct PendingChecksums {
    uint64_t write;
    FileBlock first;
    std::span<const std::byte> data;  // of whole blocks; nobody changes it
  };

  bool HasContent(FileBlock block) const;
  BlockCount BlocksWithoutSpace(FileBlock first, FileBlock end) const;
  void PlanSpace(FileBlock first, FileBlock end, WritePlan* plan) const;
  void PlanFill(FileBlock block, bool of_dirty, WritePlan* plan) const;
  void PlanMemory(FileBlock first, FileBlock end, Staging staging, WritePlan* plan) const;
  void ApplyAdoption(WritePlan::Adoption adoption);
  bool WritebackGroup(FileBlock first, BlockCount count, bool stream, std::vector<BlockWrite>* writes);
  void WritebackRun(FileBlock first, const DeviceRun& run, std::vector<BlockWrite>* writes);
  void ComputePendingChecksums(FileBlock first, BlockCount count);
  void InvalidateCache(uint64_t offset, uint64_t end);
  void ForgetContent();

  const InodeId id_;
  InodeRecord& attributes_;
  const FileServices services_;

  bool loaded_ = false;
  ExtentMap extents_;
  ChecksumTable checksums_;
  DirtyMap dirty_;
  SpaceReservation reservation_;     // at least one block for each dirty block that needs space
  std::vector<DeviceRun> freed_;     // unmapped since the last seal
  uint64_t shrunk_to_ = UINT64_MAX;  // the smallest size since the last seal

  CommitState commit_;
  WriteErrorState write_error_;

  // Device writes under way, by the side of the last seal they were started on. `drained_` is notified when either
  // becomes 0, and at the end of each while somebody waits for a range.
  uint64_t seals_ = 0, next_write_ = 1;
  uint64_t writes_since_seal_ = 0, writes_before_seal_ = 0;
  unsigned range_waiters_ = 0;
  std::condition_variable drained_;
  std::vector<PendingChecksums> pending_checksums_;  // a few at most; none of them is at the device yet

  // Where a sequential writer would go on, and how much it has written in sequence.
  uint64_t write_next_ = 0, write_sequence_ = 0;
};

}  // namespace weightfs
