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
  struct Services {
    KvStore& catalog;
    DeviceSet& devices;
    SpaceManager& space;
    WriteBack& write_back;
    CommitQueue& commits;
    Reader& reader;
    BufferPool& stripes;  // Staging::kStripe
    BufferPool& small;    // Staging::kSmall
    ReadCache& cache;
    std::chrono::milliseconds commit_interval, space_wait;  // of StoreOptions
    bool read_only;
  };
  // Moved by lease holders: of files in bytes, of devices in whole blocks.
  struct LeaseCounters {
    std::atomic<uint64_t> read_bytes{0}, written_bytes{0};
    std::atomic<uint64_t> device_read_bytes{0}, device_written_bytes{0};
  };

  explicit FileIo(const Services& services) : p_(services) {}

  // Loads the file's extents. Every other call does so by itself.
  Result<void> Load(const InodePtr& inode) { return LoadFile(p_.catalog, inode); }

  // Reads at most `size` bytes (at most 8 MiB); fewer only at the end of the file. `stream` may be null.
  void Read(const InodePtr& inode, ByteOffset offset, ByteCount size, ReadStream* stream, ReadDone done,
            bool from_devices = false);  // see Reader::Read
  Result<ReadView> Read(const InodePtr& inode, ByteOffset offset, ByteCount size);  // waits
  // Drops the read-ahead cache of the file. The next read goes to the devices.
  void DropCached(const InodePtr& inode);

  // Writes all of `data` or nothing; beyond 4 MiB this holds for each 4 MiB step. Returns kNoSpace when the data does
  // not fit. `holder` may own the memory of `data`. If data.data() == holder.data() + offset % kBlockSize, the store
  // keeps the buffer instead of copying it. The store may then write to the bytes before `data`, and nobody else may
  // change the buffer again.
  Result<void> Write(const InodePtr& inode, ByteOffset offset, std::span<const std::byte> data, Buffer holder = {});
  // Same, limited by `reach`. `accepted` runs in the call as soon as the store has taken the data, before the checksums
  // are computed and the data is submitted to a device.
  void Write(const InodePtr& inode, ByteOffset offset, std::span<const std::byte> data, const Buffer& holder,
             WriteReach reach, const std::function<void(Result<void>)>& accepted);
  // Runs `next` when fewer than `limit` bytes are in flight to the devices: in the call, or on a completion thread.
  void WhenWritesBelow(ByteCount limit, std::function<void()> next);
  // Appends `data` to the file atomically. Returns the offset of the data.
  Result<ByteOffset> Append(const InodePtr& inode, std::span<const std::byte> data);
  // True if the content was not committed yet, or is that of a replacement that began longer than commit= ago.
  bool IsOverdue(Inode& inode) const;
  // `replace`: O_TRUNC; the old content stays committed until the new content is. Waits for a commit if IsOverdue.
  Result<void> Truncate(const InodePtr& inode, uint64_t size, bool replace = false);
  Result<void> Fallocate(const InodePtr& inode, FallocateMode mode, uint64_t offset, uint64_t length);
  Result<uint64_t> Seek(const InodePtr& inode, uint64_t offset, SeekTarget target);
  // Copies inside the store. Returns the number of bytes copied; fewer than `length` at the end of `from`, or after an
  // error.
  Result<uint64_t> CopyRange(const InodePtr& from, uint64_t from_offset, const InodePtr& to, uint64_t to_offset,
                             uint64_t length);
  Result<std::vector<FileExtent>> Extents(const InodePtr& inode, FileBlock first, size_t limit);
  // The blocks of data in memory that no extent has.
  Result<BlockCount> WithoutExtent(const InodePtr& inode);

  // Leases, for programs that read and write the devices themselves. The caller destroys everything that these calls
  // return before Store::Close.
  //
  // Pins a range and returns its extents and checksums. They describe the current bytes, unsynced ones included. Waits
  // for writes of the range in progress. Returns kAgain when the range is written continuously, kFileTooBig for more
  // than kLargestLease. `from_memory`: with hot memory, if all of the range is there.
  Result<ReadLease> LeaseRead(const InodePtr& inode, uint64_t offset, uint64_t length, bool from_memory = false);
  // Loads the file's content from `offset` on into hot memory, at most kMostMapped bytes of the `length`. As long as
  // somebody has the descriptor, the content is not evicted. kNoMemory: it does not fit, or there is no hot memory.
  // Otherwise as LeaseRead.
  Result<MapLease> LeaseMap(const InodePtr& inode, uint64_t offset, uint64_t length);
  // The same, if all of the range is loaded; kNoMemory if not.
  Result<MapLease> LeaseLoaded(const InodePtr& inode, uint64_t offset, uint64_t length);
  // For passthrough: the content of a file of which all is in hot memory and which nobody can change. Nobody can change
  // the file until nobody uses the descriptor or a mapping any more (IsPassed), or the kernel has refused it.
  Result<PassedMemory> Pass(const InodePtr& inode);
  void PassRefused(const PassedMemory& passed);
  // Reserves space for `count` blocks of the file from `first` on, or for new files of a directory (`first` is 0).
  // Returns kNoSpace when too little is free.
  Result<BlockReservation> Reserve(const InodePtr& inode, FileBlock first, BlockCount count);
  // Reserves `count` blocks for the whole content of the file in place of the old content, for a pool that has no space
  // beside it. DropContent first takes the space: free blocks, and those that the old content frees, except blocks that
  // read leases pin. Then it makes the file a hole of its size, unless the free blocks suffice. Returns kNoSpace, and
  // changes nothing, when there are too few. ReserveDropped then waits until the blocks are free: the commit, and the
  // reads in progress. Give both the same `space`; destroy it before the store.
  Result<void> DropContent(const InodePtr& inode, BlockCount count, SpaceReservation* space);
  Result<BlockReservation> ReserveDropped(const InodePtr& inode, BlockCount count, SpaceReservation* space);
  // Makes the first blocks of the reservation, which already hold the data, part of the file atomically, and frees the
  // rest. The change is as durable as a write. On failure the file is unchanged.
  Result<void> CommitDirect(const InodePtr& inode, const DirectWrite& write, BlockReservation grant);
  void NoteDirectWrite(uint64_t bytes, BlockCount blocks);
  const LeaseCounters& leased() const { return leased_; }

  // `wait` runs before a call fails for lack of space, on the thread of that call. It waits until every file is closed
  // whose close the store's callers have received. Set it, and reset it with null, only while the store is not in use.
  void WaitForCloses(std::function<void()> wait) { wait_for_closes_ = std::move(wait); }

  // From now on, every change and lease returns kShutdown. Returns false if it has been called before.
  bool Close() { return !closed_.exchange(true); }
  bool closed() const { return closed_.load(); }

  Result<void> CheckWritable(KvChange change) const override;
  Result<void> CommitBeforeNaming(std::span<const InodePtr> files, bool kept, InodePtr* failed) override;
  void CommitSettledBeforeNaming(const std::vector<InodePtr>* files) override;
  Result<void> ReportErrors(std::span<const InodePtr> files, bool kept) override;
  std::vector<InodePtr> UncommittedFiles() override;
  bool IsPassed(const Inode& inode) const override;
  void DropReadAhead(const Inode& inode) override { p_.cache.DropReadAhead(inode.id); }
  Result<DataRecords> ReadRecords(const InodePtr& inode, bool restorable) override;
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

  Result<void> CheckNotFailed() const;
  Result<void> CheckWritable(Inode& inode) REQUIRES(inode.mutex);
  Result<void> Fetch(const InodePtr& inode, const WriteNeeds& needs, WriteSupplies* supplies, SpaceSearch* search);
  Result<void> FetchSpace(BlockCount count, bool privileged, SpaceReservation* reservation, SpaceSearch* search);
  bool CommitReplacements(const SpaceSearch& search, BlockCount count, bool privileged);
  void CommitAllAndWait(CommitLevel level) const;
  Result<void> CommitFiles(std::span<const InodePtr> files, CommitLevel level, CommitOptions options, InodePtr* failed);
  void FetchMemory(const WriteNeeds& needs, WriteSupplies* supplies);
  Result<void> FetchContent(const InodePtr& inode, FileBlock block, WriteSupplies* supplies);
  Result<void> WriteSteps(const InodePtr& inode, ByteOffset offset, std::span<const std::byte> data,
                          const Buffer& holder, WriteReach reach, PendingWrites* writes);
  Result<void> WriteStep(const InodePtr& inode, uint64_t* offset, bool append, std::span<const std::byte> data,
                         const Buffer& holder, WriteReach reach, PendingWrites* writes);
  void ApplyWrite(const InodePtr& inode, uint64_t offset, uint64_t size, bool adopted, WritePlan plan,
                  PendingWrites* writes) REQUIRES(inode->mutex);
  Result<void> AllocateRange(const InodePtr& inode, FileBlock first, FileBlock end, uint64_t new_size);
  Result<void> ZeroRange(const InodePtr& inode, uint64_t offset, uint64_t end);
  void Touch(const InodePtr& inode) REQUIRES(inode->mutex);
  Result<uint64_t> SeekUntil(const InodePtr& inode, uint64_t offset, uint64_t end, SeekTarget target);
  Result<uint64_t> CopyStep(const InodePtr& from, uint64_t at, const InodePtr& to, uint64_t target, uint64_t length,
                            std::span<std::byte> memory);
  Result<void> GrowTo(const InodePtr& inode, uint64_t size);
  Result<ReadLease> LeaseExtents(const InodePtr& inode, uint64_t offset, uint64_t length, bool from_memory = false);
  Result<bool> LeaseChecksums(const InodePtr& inode, ReadLease* lease);

  const Services p_;
  std::function<void()> wait_for_closes_;
  std::atomic<uint64_t> written_bytes_{0};
  LeaseCounters leased_;
  std::atomic<bool> closed_{false};
};

}  // namespace weightfs
