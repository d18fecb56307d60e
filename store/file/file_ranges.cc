// SPDX-License-Identifier: Apache-2.0
// Operations of FileIo on ranges of a file: allocate, punch, zero, seek, copy, list.
#include <algorithm>
#include <utility>

#include "store/file/file_io.h"
#include "store/file/file_io_internal.h"

namespace weightfs {
namespace {

constexpr uint64_t kCopyStep = kMiB;

}  // namespace

// Gives every hole of the range an unwritten extent.
Result<FileIo::Need> FileIo::AllocateRange(const InodePtr& inode, FileBlock first, FileBlock end, WriteBatch* batch) {
  FileState& file = *inode->file;
  // Blocks in memory get their places first, so that what is a hole afterwards is one.
  p_.write_back.SubmitRange(inode, first, end, false, batch);
  std::vector<std::pair<FileBlock, BlockCount>> holes;
  BlockCount total;
  for (FileBlock at = first; at < end;) {
    const auto piece = file.extents.Lookup(at, end - at);
    if (!piece.extent) {
      holes.emplace_back(at, piece.count);
      total += piece.count;
    }
    at += piece.count;
  }
  if (total.value == 0) return Need{};
  if (total > p_.space.total()) return ErrorCode::kNoSpace;  // Nobody need give anything up for it.
  SpaceReservation reservation;
  if (!p_.space.Reserve(&reservation, total)) return Need{Need::Kind::kSpace, {}};
  std::vector<std::vector<DeviceRun>> found;
  for (const auto& [at, count] : holes) {
    SpaceManager::Request request;
    request.ino = inode->id;
    request.first = at;
    request.count = count;
    auto runs = p_.space.Allocate(request, &reservation);
    if (!runs) {
      for (auto& taken : found) p_.space.Retire(std::move(taken));
      return Need{Need::Kind::kSpace, {}};
    }
    found.push_back(std::move(*runs));
  }
  MappedBlocksUpdate update(*inode, p_.space);
  for (size_t hole = 0; hole < holes.size(); ++hole) {
    FileBlock block = holes[hole].first;
    for (const DeviceRun& run : found[hole]) {
      file.extents.Map(block, run, kExtentUnwritten, inode->attributes.data_version + 1, &file.freed);
      block += run.run.count;
    }
  }
  return Need{};
}

Result<void> FileIo::Fallocate(const InodePtr& inode, FallocateMode mode, uint64_t offset, uint64_t length) {
  const uint64_t end = offset + length;
  if (length == 0) return ErrorCode::kInvalid;
  if (end < offset || end > kMaximumFileSize) return ErrorCode::kFileTooBig;
  const bool allocate = mode == FallocateMode::kAllocate || mode == FallocateMode::kAllocateKeepSize;
  const bool keep = mode == FallocateMode::kAllocateKeepSize || mode == FallocateMode::kZeroRangeKeepSize ||
                    mode == FallocateMode::kPunchHole;
  WriteBatch batch(p_.write_back);
  return Retry(inode, &batch, [&](Spares* spares) -> Result<Need> {
    const uint64_t size = inode->attributes.size;
    // Blocks wholly inside the range; the bytes of the blocks at its edges are zeroed in place.
    const FileBlock inner_first{(offset + kBlockSize - 1) / kBlockSize}, inner_end{end / kBlockSize};
    if (!allocate) {
      const uint64_t head_end = std::min(end, RoundUp(offset, kBlockSize));
      if (offset < head_end) {
        const Need need = ZeroInBlock(inode, offset, head_end, spares);
        if (need.kind != Need::Kind::kNothing) return need;
      }
      const uint64_t tail = std::max(head_end, RoundDown(end, kBlockSize));
      if (tail < end) {
        const Need need = ZeroInBlock(inode, tail, end, spares);
        if (need.kind != Need::Kind::kNothing) return need;
      }
      UnmapLocked(inode, inner_first, inner_end);
      Touch(inode);  // The zeros are there, whatever comes; and a commit may give back what they have replaced.
    }
    if (mode != FallocateMode::kPunchHole) {
      ASSIGN_OR_RETURN(const Need need,
                       AllocateRange(inode, {offset / kBlockSize}, {(end + kBlockSize - 1) / kBlockSize}, &batch));
      if (need.kind != Need::Kind::kNothing) return need;
    }
    if (!keep && end > size) {
      p_.reader.cache().Invalidate(inode->id, size, UINT64_MAX);
      inode->attributes.size = end;
    }
    Touch(inode);
    return Need{};
  });
}

Result<uint64_t> FileIo::Seek(const InodePtr& inode, uint64_t offset, SeekTarget target) {
  RETURN_IF_ERROR(Load(inode));
  MutexLock lock(inode->mutex);
  const FileState& file = *inode->file;
  const uint64_t size = inode->attributes.size;
  if (offset >= size) return ErrorCode::kNoData;
  const FileBlock end{(size + kBlockSize - 1) / kBlockSize};
  for (FileBlock block{offset / kBlockSize}; block < end;) {
    const DirtySpan* span = file.dirty.Find(block);
    bool data = span != nullptr;
    BlockCount count{1};
    if (!data) {
      const auto next = file.dirty.FirstFrom(block);
      const uint64_t until = next == file.dirty.spans().end() ? end.value : std::min(end.value, next->first);
      const auto piece = file.extents.Lookup(block, BlockCount{until - block.value});
      data = piece.IsWritten();
      count = piece.count;
    }
    if (data == (target == SeekTarget::kData)) return std::max(offset, ToBytes(block).value);
    block += count;
  }
  if (target == SeekTarget::kHole) return size;  // The end of the file is a hole.
  return ErrorCode::kNoData;
}

// Copies as far as one hole of the source or one step of its data reaches; 0 at its end.
Result<uint64_t> FileIo::CopyStep(const InodePtr& from, uint64_t at, const InodePtr& to, uint64_t target,
                                  uint64_t length) {
  // A hole of the source becomes one of the target.
  const auto data = Seek(from, at, SeekTarget::kData);
  uint64_t source_size;
  {
    MutexLock lock(from->mutex);
    source_size = from->attributes.size;
  }
  if (at >= source_size) return 0;
  if (!data && data.error().code != ErrorCode::kNoData) return data.error();
  const uint64_t next = std::min({data ? *data : source_size, source_size, at + length});
  if (next > at) {
    RETURN_IF_ERROR(Fallocate(to, FallocateMode::kPunchHole, target, next - at));
    RETURN_IF_ERROR(GrowTo(to, target + (next - at)));
    return next - at;
  }
  const auto hole = Seek(from, at, SeekTarget::kHole);
  if (!hole && hole.error().code != ErrorCode::kNoData) return hole.error();
  const uint64_t step = std::min({kCopyStep, length, (hole ? *hole : source_size) - at});
  ASSIGN_OR_RETURN(const ReadView view, ReadAndWait(from, ByteOffset{at}, ByteCount{step}));
  uint64_t done = 0;
  for (const iovec& piece : view.pieces) {
    WriteBatch batch(p_.write_back);
    const auto written =
        Write(to, ByteOffset{target + done}, {static_cast<const std::byte*>(piece.iov_base), piece.iov_len}, {},
              WriteReach::kAnywhere, &batch);
    if (!written && done == 0) return written.error();
    if (!written) break;
    done += piece.iov_len;
  }
  return done;
}

Result<uint64_t> FileIo::CopyRange(const InodePtr& from, uint64_t from_offset, const InodePtr& to, uint64_t to_offset,
                                   uint64_t length) {
  // The source ends where it ends now: a copy inside one file must not feed on itself.
  {
    MutexLock lock(from->mutex);
    const uint64_t size = from->attributes.size;
    if (from_offset >= size) return 0;
    length = std::min(length, size - from_offset);
  }
  uint64_t done = 0;
  while (done < length) {
    const auto step = CopyStep(from, from_offset + done, to, to_offset + done, length - done);
    // What was copied so far counts; the caller meets the error with its next call.
    if (!step && done == 0) return step.error();
    if (!step || *step == 0) break;
    done += *step;
  }
  return done;
}

// Makes the file at least `size` bytes long.
Result<void> FileIo::GrowTo(const InodePtr& inode, uint64_t size) {
  WriteBatch batch(p_.write_back);
  return Retry(inode, &batch, [&](Spares*) -> Result<Need> {
    if (inode->attributes.size >= size) return Need{};
    p_.reader.cache().Invalidate(inode->id, inode->attributes.size, UINT64_MAX);
    inode->attributes.size = size;
    Touch(inode);
    return Need{};
  });
}

Result<std::vector<FileExtent>> FileIo::Extents(const InodePtr& inode, FileBlock first, size_t limit) {
  RETURN_IF_ERROR(Load(inode));
  MutexLock lock(inode->mutex);
  std::vector<FileExtent> list;
  const auto& extents = inode->file->extents.extents();
  auto at = extents.upper_bound(first.value);
  if (at != extents.begin() && std::prev(at)->first + std::prev(at)->second.count.value > first.value) --at;
  for (; at != extents.end() && list.size() < limit; ++at) {
    const ExtentRecord& record = at->second;
    list.push_back({FileBlock{at->first}, record.count, record.device, record.start, record.flags});
  }
  return list;
}

}  // namespace weightfs
