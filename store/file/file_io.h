// SPDX-License-Identifier: Apache-2.0
// File data: writes, truncation, allocation, seeking and copying; and what the namespace needs of it.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "common/result.h"
#include "meta/kv_store.h"
#include "store/commit/committer.h"
#include "store/file/inode.h"
#include "store/file/lease.h"
#include "store/file/reader.h"
#include "store/file/write_back.h"
#include "store/names/namespace.h"
#include "store/space/space_manager.h"
#include "store/types.h"

namespace weightfs {

// Thread-safe. No call holds an inode's mutex while it waits for a device, for memory or for a commit; reading the
// catalog under it is allowed (the answer must belong to the mapping of that moment).
class FileIo final : public DataOwner {
 public:
  struct Parts {
    KvStore& catalog;
    DeviceSet& devices;
    SpaceManager& space;
    WriteBack& write_back;
    Committer& committer;
    Reader& reader;
    BufferPool& stripes;  // 2 MiB windows of streams
    BufferPool& windows;  // 64 KiB windows of everything else
  };

  explicit FileIo(const Parts& parts) : p_(parts) {}

  // Reads the file's extents once; every other call does it by itself.
  Result<void> Load(const InodePtr& inode);

  // The writes to the devices that this caused are in `batch`, for the caller to send.
  Result<void> Write(const InodePtr& inode, ByteOffset offset, std::span<const std::byte> data, const Buffer& holder,
                     WriteReach reach, WriteBatch* batch);
  Result<ByteOffset> Append(const InodePtr& inode, std::span<const std::byte> data);
  // `replace`: O_TRUNC, the committed content stays until the new one is committed.
  Result<void> Truncate(const InodePtr& inode, uint64_t size, bool replace);
  Result<void> Fallocate(const InodePtr& inode, FallocateMode mode, uint64_t offset, uint64_t length);
  Result<uint64_t> Seek(const InodePtr& inode, uint64_t offset, SeekTarget target);
  Result<uint64_t> CopyRange(const InodePtr& from, uint64_t from_offset, const InodePtr& to, uint64_t to_offset,
                             uint64_t length);
  Result<std::vector<FileExtent>> Extents(const InodePtr& inode, FileBlock first, size_t limit);
  Result<ReadView> ReadAndWait(const InodePtr& inode, ByteOffset offset, ByteCount size);

  // For those who use the devices themselves; Store says what each means.
  Result<ReadLease> LeaseRead(const InodePtr& inode, uint64_t offset, uint64_t length);
  Result<SpaceGrant> ReserveDirect(const InodePtr& inode, FileBlock first, BlockCount count);
  Result<void> CommitDirect(const InodePtr& inode, const DirectWrite& write, SpaceGrant grant);

  // `wait`, or nothing, runs where the pool is full, without locks: Store::WaitForCloses.
  void WaitForCloses(std::function<void()> wait) { wait_for_closes_ = std::move(wait); }

  // Makes what a commit can give back free: windows of idle streams, space that waits for a commit.
  void ReclaimSpace(Committer::Scope scope);

  Result<void> CommitBeforeNaming(std::span<const InodePtr> files) override;
  void CommitSettledBeforeNaming() override;
  std::vector<InodePtr> UncommittedFiles() override;
  Result<std::vector<DeviceRun>> DeleteRecords(const InodePtr& inode, KvBatch* batch) override;
  void DropData(const InodePtr& inode, std::vector<DeviceRun> runs) override;

  uint64_t written_bytes() const { return written_bytes_.load(); }

 private:
  // What a call under the inode's mutex needs from outside it before it can go on.
  struct Need {
    enum class Kind : unsigned char { kNothing, kBlock, kStripe, kWindow, kSpace } kind = Kind::kNothing;
    FileBlock block;  // kBlock: its bytes as they are
  };
  struct Spares;
  struct EdgeBlock {
    FileBlock block;
    bool fill = false;  // `bytes` is what the new memory holds before the write
    std::byte bytes[kBlockSize];
  };
  using NewSpans = std::vector<std::pair<uint64_t, DirtySpan>>;

  template <typename Step>
  Result<void> Retry(const InodePtr& inode, WriteBatch* batch, Step step);
  Result<void> Satisfy(const InodePtr& inode, const Need& need, Spares* spares);

  Result<void> CheckWritable(Inode& inode) REQUIRES(inode.mutex);
  bool NeedsContent(const Inode& inode, FileBlock block) const REQUIRES(inode.mutex);
  Need Reserve(const InodePtr& inode, FileBlock first, BlockCount count, bool privileged) REQUIRES(inode->mutex);
  Need FindMemory(const InodePtr& inode, FileBlock first, FileBlock end, bool stripe, Spares* spares, NewSpans* spans)
      REQUIRES(inode->mutex);
  Need OldContent(const InodePtr& inode, FileBlock block, const Spares& spares, EdgeBlock* out) REQUIRES(inode->mutex);
  Need Place(const InodePtr& inode, uint64_t offset, uint64_t size, const std::byte* data, bool stripe, bool privileged,
             Spares* spares) REQUIRES(inode->mutex);
  Need Content(const InodePtr& inode, FileBlock block, const Spares& spares, EdgeBlock* out) REQUIRES(inode->mutex);
  Need PlaceTail(const InodePtr& inode, FileBlock block, std::span<const std::byte> data, Spares* spares)
      REQUIRES(inode->mutex);
  Need Adopt(const InodePtr& inode, uint64_t offset, std::span<const std::byte> data, const Buffer& holder,
             Spares* spares, WriteBatch* batch) REQUIRES(inode->mutex);
  Result<Need> WriteStep(const InodePtr& inode, uint64_t offset, std::span<const std::byte> data, const Buffer& holder,
                         Spares* spares, WriteBatch* batch) REQUIRES(inode->mutex);
  Need ZeroInBlock(const InodePtr& inode, uint64_t from, uint64_t to, Spares* spares) REQUIRES(inode->mutex);
  Result<Need> AllocateRange(const InodePtr& inode, FileBlock first, FileBlock end, WriteBatch* batch)
      REQUIRES(inode->mutex);
  void UnmapLocked(const InodePtr& inode, FileBlock first, FileBlock end) REQUIRES(inode->mutex);
  void SetSize(const InodePtr& inode, uint64_t size) REQUIRES(inode->mutex);
  Result<uint64_t> CopyStep(const InodePtr& from, uint64_t at, const InodePtr& to, uint64_t target, uint64_t length);
  Result<void> GrowTo(const InodePtr& inode, uint64_t size);
  void PinRange(const Inode& inode, ReadLease* lease) REQUIRES(inode.mutex);
  Result<ReadLease> LeasePlaces(const InodePtr& inode, uint64_t offset, uint64_t length);
  Result<bool> LeaseChecksums(const InodePtr& inode, ReadLease* lease);
  void ReplaceBlocks(const InodePtr& inode, FileBlock first, const std::vector<DeviceRun>& runs,
                     std::span<const uint32_t> checksums) REQUIRES(inode->mutex);
  void Touch(const InodePtr& inode) REQUIRES(inode->mutex);

  const Parts p_;
  std::function<void()> wait_for_closes_;
  std::atomic<uint64_t> written_bytes_{0};
};

}  // namespace weightfs
