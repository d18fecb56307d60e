// SPDX-License-Identifier: Apache-2.0
// The tensor store: catalog, devices and the write protocol behind one POSIX-like interface. Knows nothing of FUSE.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "engine/block_device.h"
#include "meta/kv_store.h"
#include "store/file/lease.h"
#include "store/names/namespace.h"
#include "store/types.h"

namespace weightfs {

// The least that StoreOptions::memory may be: each pool has so many buffers that no thread waits for another for ever.
inline constexpr ByteCount kLeastMemory{112 * kMiB};

struct StoreOptions {
  bool read_only = false;
  std::chrono::milliseconds commit_interval{5000};  // the most that a crash may take back
  std::chrono::milliseconds close_delay{1000};      // a closed file's commit begins within this
  bool sync_on_close = false;
  ByteCount memory{384 * kMiB};  // all I/O buffers together, at least kLeastMemory
  bool verify = true;            // check checksums on read; false for measurements only
  size_t resident_inodes = 16384;
  // How much of each device belongs to the store, as its superblock says; empty: all of it. A device may have grown.
  std::vector<ByteCount> device_sizes = {};
};

// Counters since Open, and gauges. Everything in bytes unless named otherwise.
struct StoreStatistics {
  uint64_t read_bytes = 0, written_bytes = 0;                // of callers
  uint64_t device_read_bytes = 0, device_written_bytes = 0;  // those of leases included
  uint64_t leased_read_bytes = 0, leased_written_bytes = 0;  // covered by leases for reading; committed by the others
  uint64_t commits = 0, flushes = 0, checksum_errors = 0;
  uint64_t buffer_capacity = 0, buffer_in_use = 0, dirty_bytes = 0;
  uint64_t resident_inodes = 0;
  uint64_t pinned_bytes = 0, granted_bytes = 0;  // of leases for reading and for writing
  bool read_only = false;
};

// Thread-safe. Asynchronous calls end on a completion or committer thread, or before the call returns; their callbacks
// must not block on the store.
class Store {
 public:
  // Mounts the catalog and devices (in index order), recovers (orphans, free space) and starts the committer. An
  // undecodable or overlapping extent opens the store read-only and says so; kCorrupt when it cannot be served at all.
  static Result<std::unique_ptr<Store>> Open(std::unique_ptr<KvStore> catalog,
                                             std::vector<std::unique_ptr<BlockDevice>> devices,
                                             const StoreOptions& options);
  // Commits everything, then stops. Call Close first to learn of errors.
  ~Store();

  // Makes everything durable and stops; later calls give kShutdown.
  Result<void> Close();

  // Names and attributes.
  Namespace& names();
  InodeTable& inodes();
  // Every change; a size goes through truncation first.
  Result<Attributes> SetAttributes(InodeId ino, const AttributeChange& change);

  // Open files. O_TRUNC is Truncate(…, 0) with `replace`: the old content stays what a crash shows until the new one
  // is committed (at close, at fsync, or after 30 s).
  Result<InodePtr> OpenFile(InodeId ino, bool truncate);
  // For each close(2) of a descriptor: reports an error of earlier writes; with sync_on_close waits for a commit. Other
  // processes have copies of a descriptor and close theirs when they end or start a program, and ask for no error: the
  // error is reported again until the CloseFile that is given `reported_failure`, which is 0 at first and lives until
  // then.
  void Flush(const InodePtr& inode, std::atomic<uint64_t>* reported_failure, Done done);
  // The end of one OpenFile: the file is committed soon.
  void CloseFile(const InodePtr& inode, uint64_t reported_failure = 0);

  // Reads at most `size` bytes, 8 MiB at most, and fewer at the end of the file only. `stream` may be null.
  void Read(const InodePtr& inode, ByteOffset offset, ByteCount size, ReadStream* stream, ReadDone done);
  Result<ReadView> Read(const InodePtr& inode, ByteOffset offset, ByteCount size);  // waits

  // Forgets what read-ahead has of the file; the next read comes from the devices.
  void DropCached(const InodePtr& inode);

  // Writes all of `data` or nothing (beyond 4 MiB: each 4 MiB of it); kNoSpace when it does not fit. `holder` may own
  // the memory of `data`: where data.data() == holder.data() + offset % kBlockSize, the store keeps the buffer instead
  // of copying; it may write to what lies before `data`, and nobody else may change any of it again.
  Result<void> Write(const InodePtr& inode, ByteOffset offset, std::span<const std::byte> data, Buffer holder = {});
  // The same, as far as `reach` lets it; `accepted` runs in the call as soon as the data is the store's, before its
  // checksums are computed and it is sent to a device.
  void Write(const InodePtr& inode, ByteOffset offset, std::span<const std::byte> data, Buffer holder, WriteReach reach,
             const std::function<void(Result<void>)>& accepted);
  // Runs `next` when fewer than `limit` bytes are on their way to the devices: in the call, or on a completion thread.
  void WhenWritesBelow(ByteCount limit, std::function<void()> next);
  // At the end of the file, as one step; the offset it was written at.
  Result<ByteOffset> Append(const InodePtr& inode, std::span<const std::byte> data);

  Result<void> Truncate(const InodePtr& inode, uint64_t size);
  Result<void> Fallocate(const InodePtr& inode, FallocateMode mode, uint64_t offset, uint64_t length);
  Result<uint64_t> Seek(const InodePtr& inode, uint64_t offset, SeekTarget target);
  // Copies inside the store; the bytes copied, fewer at the end of `from`.
  Result<uint64_t> CopyRange(const InodePtr& from, uint64_t from_offset, const InodePtr& to, uint64_t to_offset,
                             uint64_t length);
  Result<std::vector<FileExtent>> Extents(const InodePtr& inode, FileBlock first, size_t limit);

  // fsync(2): data, attributes, the name, and every namespace change before it. SyncAll: everything. `kept`: an error
  // of the file's earlier writes goes to the next caller too.
  void Sync(const InodePtr& inode, Done done, bool kept = false);
  void SyncAll(Done done);
  Result<void> Sync(const InodePtr& inode);
  Result<void> SyncAll();

  // Leases: for those who read and write the devices themselves. What these calls give out is gone before Close.
  //
  // The places of a range, pinned, with their checksums: the bytes as they are now, those included that nobody synced.
  // Waits for writes of them under way. kAgain where somebody writes the range all the time, kFileTooBig for more than
  // kLargestLease.
  Result<ReadLease> LeaseRead(const InodePtr& inode, uint64_t offset, uint64_t length);
  // Space for `count` blocks of the file from `first` on, or of files of a directory (`first` is 0). kNoSpace.
  Result<BlockReservation> Reserve(const InodePtr& inode, FileBlock first, BlockCount count);
  // The first blocks of the grant, which hold them already, become bytes of the file, as one step; what is left of the
  // grant is free. As durable as a write; the file is as it was when this fails.
  Result<void> CommitDirect(const InodePtr& inode, const DirectWrite& write, BlockReservation grant);
  // The blocks of the grant become files of the directory: Namespace::Publish, which says what it returns and what
  // `failed` is. Waits until their content is on stable storage.
  Result<std::vector<InodeId>> Publish(const InodePtr& directory, const Credentials& who, uint32_t mode,
                                       std::span<const DirectFile> files, std::span<const uint32_t> checksums,
                                       BlockReservation grant, size_t* failed);
  // A new descriptor of a device for holders of leases: FileDevice::OpenAgain. Who writes a grant
  // has descriptors of a writer of his own, and the grant knows it (BlockReservation::BeginWrites).
  Result<UniqueFd> OpenDevice(DeviceId device, bool write, uint64_t writer = 0);
  // Frees the blocks of grants that have ended whose writers are gone by now. True when some are left.
  bool CollectOrphanedReservations();
  size_t device_count() const;

  // `notify` runs for each file that a failed write has put back to its last commit: on a thread of the store, which it
  // must not make wait. Null: no further calls, and none is under way when this returns.
  void OnReverted(std::function<void(InodeId)> notify);

  // `wait` runs before a call fails for want of space, on its thread: when it returns, every file is closed whose close
  // the callers of the store have been told of. Set, and taken back with null, while nobody uses the store.
  void WaitForCloses(std::function<void()> wait);

  SpaceStatistics Space() const;
  StoreStatistics statistics() const;
  bool read_only() const;

  // For the owner's last steps after Close (marking superblocks clean).
  std::vector<std::unique_ptr<BlockDevice>>& devices();

 private:
  struct Parts;
  explicit Store(std::unique_ptr<Parts> parts);
  Result<void> CheckWritable() const;

  // What holders of leases moved. Of files their bytes, of devices whole blocks.
  struct Leased {
    std::atomic<uint64_t> read_bytes{0}, written_bytes{0};
    std::atomic<uint64_t> device_read_bytes{0}, device_written_bytes{0};
  };

  std::unique_ptr<Parts> p_;
  Leased leased_;
  std::atomic<bool> closed_{false};
};

}  // namespace weightfs
