// SPDX-License-Identifier: Apache-2.0
// Operations of FileIo for those who read and write the devices themselves.
#include <algorithm>
#include <utility>

#include "common/log.h"
#include "store/file/file_io.h"
#include "store/file/file_io_internal.h"

namespace weightfs {
namespace {

// A range that changes between the look at its places and the look at its checksums is looked at again, this often.
constexpr int kAttempts = 100;
// Checksums are looked up so many at a time under the inode's mutex.
constexpr BlockCount kSumStep{256 * kMiB / kBlockSize};

bool Frozen(const DirtyMap& dirty, FileBlock first, FileBlock end) {
  for (auto at = dirty.FirstFrom(first); at != dirty.spans().end() && at->first < end.value; ++at) {
    if (at->second.frozen()) return true;
  }
  return false;
}

}  // namespace

// Lists and pins what is mapped in the range, which has no data in memory.
void FileIo::PinRange(const Inode& inode, ReadLease* lease) {
  std::vector<DeviceRun> runs;
  const FileBlock end = lease->first + lease->count;
  for (FileBlock at = lease->first; at < end;) {
    const auto piece = inode.file->extents.Lookup(at, end - at);
    at += piece.count;
    if (!piece.IsWritten()) continue;
    const ExtentRecord& record = *piece.extent;
    if (!lease->extents.empty()) {
      FileExtent& last = lease->extents.back();
      if (last.first + last.count == piece.first && last.device == record.device &&
          last.start + last.count == record.start) {
        last.count += piece.count;
        continue;
      }
    }
    lease->extents.push_back({piece.first, piece.count, record.device, record.start, 0});
  }
  for (const FileExtent& extent : lease->extents) runs.push_back({extent.device, {extent.start, extent.count}});
  lease->pin = p_.space.Pin(std::move(runs));
}

// Sends out what is in memory of the range, waits until it is on the devices, and pins the range as it is then.
Result<ReadLease> FileIo::LeasePlaces(const InodePtr& inode, uint64_t offset, uint64_t length) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    RETURN_IF_ERROR(Load(inode));
    WriteBatch batch(p_.write_back);
    MutexLock lock(inode->mutex);
    FileState& file = *inode->file;
    if (inode->deleted) return ErrorCode::kStale;
    if (!file.loaded) continue;                     // A failed write dropped it in between.
    if (file.torn) return Error{file.error->code};  // It has places that hold nothing of it.
    ReadLease lease;
    lease.file_size = inode->attributes.size;
    const uint64_t from = std::min(offset, lease.file_size);
    const uint64_t end = from + std::min(length, lease.file_size - from);
    lease.first = BlockOf(from);
    lease.count = end > from ? BlockEnd(end) - lease.first : BlockCount{};
    if (lease.count > kLargestLease) return ErrorCode::kFileTooBig;
    const FileBlock end_block = lease.first + lease.count;
    if (!file.dirty.Overlaps(lease.first, lease.count)) {
      PinRange(*inode, &lease);
      return lease;
    }
    p_.write_back.SubmitRange(inode, lease.first, end_block, false, &batch);
    lock.Unlock();
    batch.Send();
    lock.Lock();
    ++file.range_waiters;
    file.drained.wait(lock.native(), [&] { return !Frozen(file.dirty, lease.first, end_block); });
    --file.range_waiters;
  }
  return Error{ErrorCode::kAgain, "the range is being written all the time"};
}

// The checksums of the blocks that are pinned. False when the file has changed there: a pinned block is given to nobody
// else, so where the mapping is the same the content is.
Result<bool> FileIo::LeaseChecksums(const InodePtr& inode, ReadLease* lease) {
  lease->checksums.assign(lease->count.value, 0);
  for (const FileExtent& extent : lease->extents) {
    for (BlockCount done; done < extent.count;) {
      const BlockCount step = std::min(kSumStep, extent.count - done);
      const FileBlock first = extent.first + done, end = first + step;
      MutexLock lock(inode->mutex);
      FileState& file = *inode->file;
      if (inode->deleted) return ErrorCode::kStale;
      for (FileBlock at = first; at < end;) {
        const auto piece = file.extents.Lookup(at, end - at);
        const DeviceBlock expected = extent.start + (at - extent.first);
        if (!piece.IsWritten() || piece.extent->device != extent.device || piece.extent->start != expected)
          return false;
        at += piece.count;
      }
      const std::span<uint32_t> out = std::span(lease->checksums).subspan((first - lease->first).value, step.value);
      if (auto found = file.checksums.Get(p_.catalog, inode->id, first, out); !found) {
        spdlog::error("inode {}: checksums of {} blocks from file block {}: {}; run weightfs fsck", inode->id.value,
                      step.value, first.value, ToString(found.error()));
        return found.error();
      }
      done += step;
    }
  }
  return true;
}

Result<ReadLease> FileIo::LeaseRead(const InodePtr& inode, uint64_t offset, uint64_t length) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    ASSIGN_OR_RETURN(ReadLease lease, LeasePlaces(inode, offset, length));
    ASSIGN_OR_RETURN(const bool whole, LeaseChecksums(inode, &lease));
    if (whole) return lease;
  }
  return Error{ErrorCode::kAgain, "the range is being written all the time"};
}

Result<SpaceGrant> FileIo::ReserveDirect(const InodePtr& inode, FileBlock first, BlockCount count) {
  if (count.value == 0) return ErrorCode::kInvalid;
  if (count > p_.space.total()) return ErrorCode::kNoSpace;
  SpaceManager::Request request;
  request.ino = inode->id;
  request.first = first;
  request.count = count;
  if (first.value > 0) {
    RETURN_IF_ERROR(Load(inode));
    MutexLock lock(inode->mutex);
    const auto before = inode->file->extents.Lookup(first - BlockCount{1}, BlockCount{1});
    if (before.extent) request.after = DeviceRun{before.extent->device, {before.extent->start, BlockCount{1}}};
  }
  SpaceReservation reservation;
  Spares spares;
  while (!p_.space.Reserve(&reservation, count)) {
    RETURN_IF_ERROR(Satisfy(inode, {Need::Kind::kSpace, {}}, &spares));
  }
  return p_.space.Grant(request, &reservation);
}

Result<void> FileIo::CommitDirect(const InodePtr& inode, const DirectWrite& write, SpaceGrant grant) {
  const uint64_t end = write.offset + write.length;
  const FileBlock first = BlockOf(write.offset), end_block = BlockEnd(end);
  if (write.offset % kBlockSize != 0 || write.length == 0 || write.new_size.value_or(end) < end) {
    return ErrorCode::kInvalid;
  }
  if (end < write.offset || std::max(end, write.new_size.value_or(end)) > kMaximumFileSize) {
    return ErrorCode::kFileTooBig;
  }
  const BlockCount count = end_block - first;
  if (write.checksums.size() != count.value || grant.count() < count) return ErrorCode::kInvalid;
  WriteBatch batch(p_.write_back);
  RETURN_IF_ERROR(Retry(inode, &batch, [&](Spares* spares) -> Result<Need> {
    const uint64_t old = inode->attributes.size;
    const uint64_t size = write.new_size.value_or(std::max(old, end));
    if (end % kBlockSize != 0 && size != end) return ErrorCode::kInvalid;
    if (size > end && size < old && size % kBlockSize != 0) {
      const Need need = ZeroInBlock(inode, size, std::min(old, RoundUp(size, kBlockSize)), spares);
      if (need.kind != Need::Kind::kNothing) return need;
    }
    // From here on nothing fails.
    ReplaceBlocks(inode, first, grant.Take(count), write.checksums);
    if (write.new_size || size != old) SetSize(inode, size);
    Touch(inode);
    return Need{};
  }));
  return {};
}

// Maps the runs, whose content is on the devices, in the place of what the file has from `first` on.
void FileIo::ReplaceBlocks(const InodePtr& inode, FileBlock first, const std::vector<DeviceRun>& runs,
                           std::span<const uint32_t> checksums) {
  FileState& file = *inode->file;
  const BlockCount count{checksums.size()};
  // Whoever sends an older write of these blocks finds its checksums computed, and sets none after the new ones.
  p_.write_back.SumOverlapping(file, first, count);
  UnmapLocked(inode, first, first + count);
  MappedBlocksUpdate update(*inode, p_.space);
  FileBlock at = first;
  for (const DeviceRun& run : runs) {
    file.extents.Map(at, run, 0, inode->attributes.data_version + 1, &file.freed);
    p_.devices.NoteWrite(run.device);  // by others: the commit flushes it
    at += run.run.count;
  }
  file.checksums.Set(first, checksums);
}

}  // namespace weightfs
