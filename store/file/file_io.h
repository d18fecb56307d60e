// SPDX-License-Identifier: Apache-2.0
// Operations on file data: write, truncate, allocate, seek, copy, lease; and the DataOwner of the namespace.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <span>
#include <type_traits>
#include <vector>

#include "common/result.h"
#include "meta/kv_store.h"
#include "store/file/commit_queue.h"
#include "store/file/data_owner.h"
#include "store/file/inode.h"
#include "store/file/lease.h"
#include "store/file/reader.h"
#include "store/file/write_back.h"
#include "store/file/write_plan.h"
#include "store/space/space_manager.h"
#include "store/types.h"

namespace weightfs {

// Thread-safe. No call holds an inode's mutex while it waits for a device, for memory or for a commit, or while it
// reads the catalog. Each call gathers its resources without the mutex, then applies its change in one hold of it.
class FileIo final : public DataOwner {
 public:
  struct Parts {
    KvStore& catalog;
    DeviceSet& devices;
    SpaceManager& space;
    WriteBack& write_back;
    CommitQueue& commits;
    Reader& reader;
    BufferPool& stripes;  // Staging::kStripe
    BufferPool& small;    // Staging::kSmall
    std::chrono::milliseconds commit_interval, space_wait;  // of StoreOptions
  };

  explicit FileIo(const Parts& parts) : p_(parts) {}

  // Loads the file's extents. Every other call does so by itself.
  Result<void> Load(const InodePtr& inode);

  // Appends the device writes that it starts to `writes`. The caller submits them once it has replied.
  Result<void> Write(const InodePtr& inode, ByteOffset offset, std::span<const std::byte> data, const Buffer& holder,
                     WriteReach reach, PendingWrites* writes);
  Result<ByteOffset> Append(const InodePtr& inode, std::span<const std::byte> data);
  // True if the content is that of a replacement which began longer than the commit interval ago.
  bool IsOverdue(Inode& inode) const;
  // `replace`: O_TRUNC; the old content stays committed until the new content is. Waits for a commit first if IsOverdue.
  Result<void> Truncate(const InodePtr& inode, uint64_t size, bool replace);
  Result<void> Fallocate(const InodePtr& inode, FallocateMode mode, uint64_t offset, uint64_t length);
  Result<uint64_t> Seek(const InodePtr& inode, uint64_t offset, SeekTarget target);
  Result<uint64_t> CopyRange(const InodePtr& from, uint64_t from_offset, const InodePtr& to, uint64_t to_offset,
                             uint64_t length);
  Result<std::vector<FileExtent>> Extents(const InodePtr& inode, FileBlock first, size_t limit);
  Result<BlockCount> WithoutExtent(const InodePtr& inode);
  Result<ReadView> ReadAndWait(const InodePtr& inode, ByteOffset offset, ByteCount size);

  // Leases. Store documents each call.
  Result<ReadLease> LeaseRead(const InodePtr& inode, uint64_t offset, uint64_t length);
  Result<BlockReservation> ReserveDirect(const InodePtr& inode, FileBlock first, BlockCount count);
  Result<void> DropContent(const InodePtr& inode, BlockCount count, SpaceReservation* space);
  Result<BlockReservation> ReserveDropped(const InodePtr& inode, BlockCount count, SpaceReservation* space);
  Result<void> CommitDirect(const InodePtr& inode, const DirectWrite& write, BlockReservation grant);

  // `wait` (may be null) runs without locks when the pool is full; see Store::WaitForCloses.
  void WaitForCloses(std::function<void()> wait) { wait_for_closes_ = std::move(wait); }

  Result<void> CheckWritable() const override;
  Result<void> CommitBeforeNaming(std::span<const InodePtr> files, bool kept, InodePtr* failed) override;
  void CommitSettledBeforeNaming(const std::vector<InodePtr>* files) override;
  Result<void> ReportErrors(std::span<const InodePtr> files, bool kept) override;
  std::vector<InodePtr> UncommittedFiles() override;
  Result<DataRecords> ReadRecords(const InodePtr& inode) override;
  bool DeleteRecords(const InodePtr& inode, const DataRecords& records, KvBatch* batch) override;
  void DropData(const InodePtr& inode, const DataRecords& records) override;

  uint64_t written_bytes() const { return written_bytes_.load(); }

 private:
  // A search for space for the file: harder with each attempt.
  struct SpaceSearch {
    const InodePtr& inode;
    int attempts = 0;
    std::chrono::steady_clock::time_point deadline = {};  // of its waits for reads that hold freed blocks
  };

  // Plans a change under the inode's mutex, fetches what the plan lacks without the mutex, and repeats until the plan
  // lacks nothing; then applies it in the same hold of the mutex. `plan(file, &write_plan)` returns Result<void> and
  // may run many times; `apply(file, write_plan)` runs once. Writes that `plan` added to `writes` are submitted before
  // any wait. `expected` blocks of space are reserved before the first plan; blocks that the plan does not need are
  // released.
  template <typename Plan, typename Apply>
  Result<void> Change(const InodePtr& inode, PendingWrites* writes, const Plan& plan, const Apply& apply,
                      BlockCount expected = {});

  // Runs `look(file)`, which returns a Result, under the inode's mutex with the file loaded.
  template <typename Look>
  std::invoke_result_t<Look, File&> WhenLoaded(const InodePtr& inode, const Look& look);

  Result<void> CheckWritable(Inode& inode) REQUIRES(inode.mutex);
  Result<void> Fetch(const InodePtr& inode, const WriteNeeds& needs, WriteSupplies* supplies, SpaceSearch* search);
  Result<void> FetchSpace(BlockCount count, bool privileged, SpaceReservation* reservation, SpaceSearch* search);
  bool CommitReplacements(const SpaceSearch& search, BlockCount count, bool privileged);
  void CommitAllAndWait(CommitLevel level);
  Result<void> CommitFiles(std::span<const InodePtr> files, CommitLevel level, CommitOptions options, InodePtr* failed);
  void FetchMemory(const WriteNeeds& needs, WriteSupplies* supplies);
  Result<void> FetchContent(const InodePtr& inode, FileBlock block, WriteSupplies* supplies);
  Result<void> WriteStep(const InodePtr& inode, uint64_t* offset, bool append, std::span<const std::byte> data,
                         const Buffer& holder, WriteReach reach, PendingWrites* writes);
  void ApplyWrite(const InodePtr& inode, uint64_t offset, uint64_t size, bool adopted, WritePlan plan,
                  PendingWrites* writes) REQUIRES(inode->mutex);
  Result<void> AllocateRange(const InodePtr& inode, FileBlock first, FileBlock end, uint64_t new_size);
  Result<void> ZeroRange(const InodePtr& inode, uint64_t offset, uint64_t end);
  void Touch(const InodePtr& inode) REQUIRES(inode->mutex);
  Result<uint64_t> SeekUntil(const InodePtr& inode, uint64_t offset, uint64_t end, SeekTarget target);
  Result<uint64_t> CopyStep(const InodePtr& from, uint64_t at, const InodePtr& to, uint64_t target, uint64_t length);
  Result<void> GrowTo(const InodePtr& inode, uint64_t size);
  Result<ReadLease> LeaseExtents(const InodePtr& inode, uint64_t offset, uint64_t length);
  Result<bool> LeaseChecksums(const InodePtr& inode, ReadLease* lease);

  const Parts p_;
  std::function<void()> wait_for_closes_;
  std::atomic<uint64_t> written_bytes_{0};
};

}  // namespace weightfs
