// SPDX-License-Identifier: Apache-2.0
// FileIo operations for programs that read and write the devices themselves.
#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/out_of_memory.h"
#include "common/sync_wait.h"
#include "store/file/file_change.h"
#include "store/file/file_io.h"

namespace weightfs {
namespace {

// Maximum number of attempts for a range that changes between the lookup of its extents and that of its checksums.
constexpr int kGrantAttempts = 100;
constexpr int kMapAttempts = 3;  // each may read from the devices
// The number of checksums to look up in one hold of the inode's mutex.
constexpr BlockCount kChecksumStep{256 * kMiB / kBlockSize};
constexpr FileBlock kAllBlocks{UINT64_MAX / kBlockSize};

// Returns the written extents of a range; adjacent ones are merged.
std::vector<FileExtent> WrittenExtents(const ExtentMap& extents, FileBlock first, FileBlock end) {
  std::vector<FileExtent> list;
  extents.ForEachPiece(first, end, [&](const ExtentMap::Piece& piece) {
    if (!piece.IsWritten()) return true;
    const ExtentRecord& record = *piece.extent;
    const bool continues = !list.empty() && list.back().first + list.back().count == piece.first &&
                           list.back().device == record.device && list.back().start + list.back().count == record.start;
    if (continues) {
      list.back().count += piece.count;
    } else {
      list.push_back({piece.first, piece.count, record.device, record.start, 0});
    }
    return true;
  });
  return list;
}

// True when the file still maps [first, first + count) to the blocks of `extent`.
bool IsMappedTo(const ExtentMap& extents, const FileExtent& extent, FileBlock first, BlockCount count) {
  bool same = true;
  extents.ForEachPiece(first, first + count, [&](const ExtentMap::Piece& piece) {
    same = piece.IsWritten() && piece.extent->device == extent.device &&
           piece.extent->start == extent.start + (piece.first - extent.first);
    return same;
  });
  return same;
}

}  // namespace

// Writes back the dirty blocks of the range, waits until the whole range is on the devices, and pins it.
Result<ReadLease> FileIo::LeaseExtents(const InodePtr& inode, uint64_t offset, uint64_t length, bool from_memory) {
  for (int attempt = 0; attempt < kGrantAttempts; ++attempt) {
    RETURN_IF_ERROR(Load(inode));
    PendingWrites writes;
    ReadLease lease;
    {
      MutexLock lock(inode->mutex);
      const File& file = *inode->file;
      if (inode->deleted) return ErrorCode::kStale;
      if (!file.loaded()) continue;                                                     // a failed write unloaded it
      if (file.write_error().failed()) return Error{file.write_error().error()->code};  // some blocks have no content
      lease.file_size = inode->attributes.size;
      const uint64_t from = std::min(offset, lease.file_size);
      const uint64_t end = from + std::min(length, lease.file_size - from);
      lease.first = BlockOf(from);
      lease.count = end > from ? BlockEnd(end) - lease.first : BlockCount{};
      if (lease.count > kLargestLease) return ErrorCode::kFileTooBig;
      if (!file.dirty().Overlaps(lease.first, lease.count)) {
        lease.extents = WrittenExtents(file.extents(), lease.first, lease.first + lease.count);
        std::vector<DeviceRun> runs;
        for (const FileExtent& extent : lease.extents) runs.push_back({extent.device, {extent.start, extent.count}});
        lease.pin = p_.space.Pin(std::move(runs));
        if (HotFiles* const hot = p_.cache.hot(); from_memory && hot != nullptr && end > from) {
          const uint64_t last = (end + kChunkBytes - 1) / kChunkBytes;
          lease.memory = hot->OpenLoaded(inode->id, from / kChunkBytes, last).value_or(UniqueFd());
        }
        return lease;
      }
      p_.write_back.Start(inode, lease.first, lease.first + lease.count, false, &writes);
    }
    p_.write_back.Submit(&writes);
    MutexLock lock(inode->mutex);
    inode->file->WaitForRange(lock, lease.first, lease.count);
  }
  return Error{ErrorCode::kAgain, "the range is being written all the time"};
}

// Looks up the checksums of the pinned blocks. Returns false when the file's mapping has changed there. Pinned blocks
// are not reused, so an unchanged mapping implies unchanged content.
Result<bool> FileIo::LeaseChecksums(const InodePtr& inode, ReadLease* lease) {
  RETURN_IF_ERROR(TryAllocate([&] { lease->checksums.assign(lease->count.value, 0); }));
  for (const FileExtent& extent : lease->extents) {
    ChecksumSegments loaded;
    for (BlockCount done; done < extent.count;) {
      const BlockCount step = std::min(kChecksumStep, extent.count - done);
      const FileBlock first = extent.first + done;
      const std::span<uint32_t> out = std::span(lease->checksums).subspan((first - lease->first).value, step.value);
      std::vector<uint64_t> missing;
      {
        MutexLock lock(inode->mutex);
        if (inode->deleted) return ErrorCode::kStale;
        if (!IsMappedTo(inode->file->extents(), extent, first, step)) return false;
        const auto found = inode->file->Checksums(first, out, loaded, &missing);
        if (!found) {
          spdlog::error("inode {}: checksums of {} blocks from file block {}: {}; run weightfs verify", inode->id.value,
                        step.value, first.value, ToString(found.error()));
          return found.error();
        }
        if (*found) done += step;
      }
      loaded.Load(p_.catalog, inode->id, missing);
    }
  }
  return true;
}

Result<ReadLease> FileIo::LeaseRead(const InodePtr& inode, uint64_t offset, uint64_t length, bool from_memory) {
  if (closed_.load()) return ErrorCode::kShutdown;
  for (int attempt = 0; attempt < kGrantAttempts; ++attempt) {
    ASSIGN_OR_RETURN(ReadLease lease, LeaseExtents(inode, offset, length, from_memory));
    ASSIGN_OR_RETURN(const bool whole, LeaseChecksums(inode, &lease));
    if (!whole) continue;
    const uint64_t bytes = std::min(length, lease.file_size - std::min(offset, lease.file_size));
    leased_.read_bytes += bytes;
    if (lease.memory) {
      p_.cache.hot()->counters().mapped_bytes += bytes;
      return lease;
    }
    for (const FileExtent& extent : lease.extents) leased_.device_read_bytes += ToBytes(extent.count).value;
    return lease;
  }
  return Error{ErrorCode::kAgain, "the range is being written all the time"};
}

Result<MapLease> FileIo::LeaseMap(const InodePtr& inode, uint64_t offset, uint64_t length) {
  if (closed_.load()) return ErrorCode::kShutdown;
  if (p_.cache.hot() == nullptr) return Error{ErrorCode::kNoMemory, "the mount has no hot memory"};
  for (int attempt = 0; attempt < kMapAttempts; ++attempt) {
    MapLease map;
    {
      // Whole chunks are loaded.
      const uint64_t begin = RoundDown(offset, kChunkBytes), most = std::min(length, kMostMapped) + 2 * kChunkBytes;
      ASSIGN_OR_RETURN(const ReadLease written, LeaseExtents(inode, begin, most));
      map.file_size = written.file_size;
    }
    const uint64_t from = std::min(offset, map.file_size), size = std::min(length, map.file_size - from);
    map.end = from + std::min(size, kMostMapped);
    if (size == 0) return map;
    auto hot = p_.reader.LoadHot(inode, map.file_size, from, map.end, from + size);
    if (!hot && hot.error().code == ErrorCode::kAgain) continue;
    if (!hot) return hot.error();
    map.content = (*hot)->id();
    auto opened = p_.cache.hot()->OpenForReading(**hot, (from + size + kChunkBytes - 1) / kChunkBytes);
    if (!opened && opened.error().code == ErrorCode::kAgain) continue;
    if (!opened) return opened.error();
    map.memory = std::move(*opened);
    p_.cache.hot()->counters().mapped_bytes += map.end - from;
    return map;
  }
  return Error{ErrorCode::kAgain, "the range is being written all the time"};
}

Result<MapLease> FileIo::LeaseLoaded(const InodePtr& inode, uint64_t offset, uint64_t length) {
  if (closed_.load()) return ErrorCode::kShutdown;
  ASSIGN_OR_RETURN(ReadLease loaded, LeaseExtents(inode, offset, length, /*from_memory=*/true));
  if (!loaded.memory) return Error{ErrorCode::kNoMemory, "not all of the range is in hot memory"};
  const uint64_t size = std::min(length, loaded.file_size - offset);
  p_.cache.hot()->counters().mapped_bytes += size;
  return MapLease{.file_size = loaded.file_size, .end = offset + size, .memory = std::move(loaded.memory)};
}

Result<PassedMemory> FileIo::Pass(const InodePtr& inode) {
  HotFiles* const files = p_.cache.hot();
  if (files == nullptr || !files->passthrough() || closed_.load()) return PassedMemory();
  MutexLock lock(inode->mutex);
  if (!p_.read_only && !inode->StaysPublished()) return PassedMemory();
  PassedMemory passed{.content = files->Find(inode->id), .memory = {}};
  const uint64_t chunks = (inode->attributes.size + kChunkBytes - 1) / kChunkBytes;
  ASSIGN_OR_RETURN(passed.memory, files->OpenLoaded(inode->id, 0, chunks));
  if (passed.memory) files->Pass(*passed.content, 1);
  return passed;
}

void FileIo::PassRefused(const PassedMemory& passed) { p_.cache.hot()->Pass(*passed.content, -1); }

bool FileIo::IsPassed(const Inode& inode) const {
  const HotFiles* const files = p_.cache.hot();
  return files != nullptr && files->IsPassed(inode.id);
}

void FileIo::NoteDirectWrite(uint64_t bytes, BlockCount blocks) {
  leased_.written_bytes += bytes;
  leased_.device_written_bytes += ToBytes(blocks).value;
}

Result<BlockReservation> FileIo::Reserve(const InodePtr& inode, FileBlock first, BlockCount count) {
  RETURN_IF_ERROR(CheckWritable(KvChange::kGrow));
  if (count.value == 0) return ErrorCode::kInvalid;
  if (count > p_.space.total()) return ErrorCode::kNoSpace;
  SpaceManager::Request request{.ino = inode->id, .first = first, .count = count};
  if (first.value > 0) {
    ASSIGN_OR_RETURN(request.after, WhenLoaded(inode, [&](const File& file) -> Result<std::optional<DeviceRun>> {
                       return file.RunBefore(first);
                     }));
  }
  SpaceReservation reservation;
  SpaceSearch search{inode};
  RETURN_IF_ERROR(FetchSpace(count, false, &reservation, &search));
  return p_.space.ReserveBlocks(request, &reservation);
}

// Checks the space and drops the content in one hold of the inode's mutex: in between, no reader may pin the blocks.
Result<void> FileIo::DropContent(const InodePtr& inode, BlockCount count, SpaceReservation* space) {
  RETURN_IF_ERROR(CheckWritable(KvChange::kGrow));
  if (count > p_.space.total()) return ErrorCode::kNoSpace;
  p_.commits.ReleaseFreed();
  bool fits_beside = false;
  BlockCount unpinned;
  const auto plan = [&](const File& file, WritePlan*) -> Result<void> {
    fits_beside = p_.space.Reserve(space, count).has_value();
    if (fits_beside) return {};
    std::vector<DeviceRun> freed = file.freed();
    file.extents().ForEachPiece(FileBlock{0}, kAllBlocks, [&](const ExtentMap::Piece& piece) {
      if (piece.extent) freed.push_back({piece.extent->device, {piece.extent->start, piece.count}});
      return true;
    });
    unpinned = p_.space.Unpinned(freed);
    return p_.space.ReserveAhead(space, count, unpinned);
  };
  const auto apply = [&](File& file, WritePlan) {
    if (fits_beside) return;
    file.Unmap(FileBlock{0}, kAllBlocks);
    Touch(inode);
    p_.write_back.UpdateQueue(inode);
  };
  while (true) {
    auto dropped = Change(inode, nullptr, plan, apply);
    if (dropped || dropped.error().code != ErrorCode::kAgain) return dropped;
    p_.commits.ReleaseFreed();
    p_.space.WaitForRetired(count, unpinned, false, std::chrono::steady_clock::time_point::max());
  }
}

Result<BlockReservation> FileIo::ReserveDropped(const InodePtr& inode, BlockCount count, SpaceReservation* space) {
  // Also if the file is clean: another cycle may be committing it.
  RETURN_IF_ERROR(
      SyncWait([&](Done done) { p_.commits.Commit(inode, CommitLevel::kDurable, std::move(done), {.kept = true}); }));
  p_.commits.ReleaseFreed();
  RETURN_IF_ERROR(p_.space.WaitUntilBacked(space));
  return p_.space.ReserveBlocks({.ino = inode->id, .first = FileBlock{0}, .count = count}, space);
}

Result<void> FileIo::CommitDirect(const InodePtr& inode, const DirectWrite& write, BlockReservation grant) {
  RETURN_IF_ERROR(CheckWritable(KvChange::kUpdate));
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
  const auto plan = [&](const File& file, WritePlan* out) -> Result<void> {
    const uint64_t old = inode->attributes.size, size = write.new_size.value_or(std::max(old, end));
    if (end % kBlockSize != 0 && size != end) return ErrorCode::kInvalid;
    if (size > end) PlanShrink(file, old, size, out);
    return {};
  };
  const auto apply = [&](File& file, WritePlan ready) {
    const uint64_t old = inode->attributes.size, size = write.new_size.value_or(std::max(old, end));
    const std::vector<DeviceRun> runs = grant.Take(count);
    // The lease holder wrote them; the commit must flush these devices.
    for (const DeviceRun& run : runs) p_.devices.NoteWrite(run.device);
    file.Apply(std::move(ready));
    file.ReplaceBlocks(first, runs, write.checksums);
    if (write.new_size || size != old) file.SetSize(size);
    Touch(inode);
    p_.write_back.UpdateQueue(inode);
  };
  RETURN_IF_ERROR(Change(inode, nullptr, plan, apply));
  NoteDirectWrite(write.length, count);
  return {};
}

}  // namespace weightfs
