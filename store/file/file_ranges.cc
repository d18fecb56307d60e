// SPDX-License-Identifier: Apache-2.0
// FileIo operations on ranges of a file: allocate, punch, zero, seek, copy, list.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "store/file/file_change.h"
#include "store/file/file_io.h"

namespace weightfs {
namespace {

constexpr uint64_t kCopyStep = kMiB;

}  // namespace

// Maps an unwritten extent to every hole of the range, and makes the file at least `new_size` bytes long.
Result<void> FileIo::AllocateRange(const InodePtr& inode, FileBlock first, FileBlock end, uint64_t new_size) {
  struct Hole {
    FileBlock first;
    BlockCount count;
  };
  std::vector<Hole> holes;
  PendingWrites writes;
  Result<void> result;
  const auto plan = [&](const File& file, WritePlan* out) -> Result<void> {
    // Allocate space for dirty blocks first, so that the remaining holes are real.
    p_.write_back.Start(inode, first, end, false, &writes);
    holes.clear();
    BlockCount total;
    file.extents().ForEachPiece(first, end, [&](const ExtentMap::Piece& piece) {
      if (piece.extent) return true;
      holes.push_back({piece.first, piece.count});
      total += piece.count;
      return true;
    });
    if (total > p_.space.total()) return ErrorCode::kNoSpace;  // no search for space can help
    out->NeedSpace(total);
    return {};
  };
  const auto apply = [&](File& file, WritePlan ready) {
    for (const Hole& hole : holes) {
      const SpaceManager::Request request{.ino = inode->id, .first = hole.first, .count = hole.count};
      const auto runs = p_.space.Allocate(request, &ready.supplies().space);
      if (!runs) {
        result = runs.error();
        return;
      }
      file.MapUnwritten(hole.first, *runs);
      Touch(inode);
    }
    if (new_size > inode->attributes.size) file.SetSize(new_size);
    Touch(inode);
  };
  auto changed = Change(inode, &writes, plan, apply);
  p_.write_back.Submit(&writes);
  RETURN_IF_ERROR(changed);
  return result;
}

// Zeroes the bytes of [offset, end) in the blocks at its edges, and unmaps the blocks between them.
Result<void> FileIo::ZeroRange(const InodePtr& inode, uint64_t offset, uint64_t end) {
  const uint64_t head_end = std::min(end, RoundUp(offset, kBlockSize));
  const uint64_t tail = std::max(head_end, RoundDown(end, kBlockSize));
  const auto plan = [&](const File& file, WritePlan* out) -> Result<void> {
    if (offset < head_end) file.PlanZeros(offset, head_end, out);
    if (tail < end) file.PlanZeros(tail, end, out);
    return {};
  };
  const auto apply = [&](File& file, WritePlan ready) {
    file.Apply(std::move(ready));
    file.Unmap(BlockEnd(offset), BlockOf(end));
    Touch(inode);
    p_.write_back.UpdateQueue(inode);
  };
  return Change(inode, nullptr, plan, apply);
}

Result<void> FileIo::Fallocate(const InodePtr& inode, FallocateMode mode, uint64_t offset, uint64_t length) {
  RETURN_IF_ERROR(CheckWritable(mode == FallocateMode::kPunchHole ? KvChange::kRemove : KvChange::kGrow));
  const uint64_t end = offset + length;
  if (length == 0) return ErrorCode::kInvalid;
  if (end < offset || end > kMaximumFileSize) return ErrorCode::kFileTooBig;
  const bool allocate = mode == FallocateMode::kAllocate || mode == FallocateMode::kAllocateKeepSize;
  const bool keep = mode == FallocateMode::kAllocateKeepSize || mode == FallocateMode::kZeroRangeKeepSize;
  // The zeroing is permanent even if the allocation fails. A commit may free the space that it replaced.
  if (!allocate) RETURN_IF_ERROR(ZeroRange(inode, offset, end));
  if (mode == FallocateMode::kPunchHole) return {};
  return AllocateRange(inode, BlockOf(offset), BlockEnd(end), keep ? 0 : end);
}

// Finds the first byte of the target in [offset, end). Everything beyond `end` or the end of the file counts as a hole.
Result<uint64_t> FileIo::SeekUntil(const InodePtr& inode, uint64_t offset, uint64_t end, SeekTarget target) {
  return WhenLoaded(inode, [&](const File& file) -> Result<uint64_t> {
    const uint64_t size = inode->attributes.size;
    if (offset >= size) return ErrorCode::kNoData;
    const FileBlock last = BlockEnd(std::min(size, end));
    for (FileBlock block = BlockOf(offset); block < last;) {
      const auto next = file.dirty().FirstFrom(block);
      const bool none = next == file.dirty().ranges().end();
      bool data = !none && next->first <= block.value;
      BlockCount count{data ? next->second.end - block.value : 0};
      if (!data) {
        const FileBlock until = none ? last : std::min(last, FileBlock{next->first});
        const auto piece = file.extents().Lookup(block, until - block);
        data = piece.IsWritten();
        count = piece.count;
      }
      if (data == (target == SeekTarget::kData)) return std::max(offset, ToBytes(block).value);
      block += count;
    }
    if (target == SeekTarget::kHole) return std::min(size, end);
    return ErrorCode::kNoData;
  });
}

Result<uint64_t> FileIo::Seek(const InodePtr& inode, uint64_t offset, SeekTarget target) {
  return SeekUntil(inode, offset, UINT64_MAX, target);
}

// Copies up to the end of one hole of the source or of one step of its data, through `memory`: a write may wait for
// buffers, so nobody may keep some meanwhile. Returns 0 at the end of the source.
Result<uint64_t> FileIo::CopyStep(const InodePtr& from, uint64_t at, const InodePtr& to, uint64_t target,
                                  uint64_t length, std::span<std::byte> memory) {
  // A hole in the source becomes a hole in the target.
  const auto data = SeekUntil(from, at, at + length, SeekTarget::kData);
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
  const auto hole = SeekUntil(from, at, at + std::min(memory.size(), length), SeekTarget::kHole);
  if (!hole) return hole.error().code == ErrorCode::kNoData ? Result<uint64_t>(0) : hole.error();
  const uint64_t step = *hole - at;
  uint64_t copied = 0;
  {
    ASSIGN_OR_RETURN(const ReadView view, Read(from, ByteOffset{at}, ByteCount{step}));
    for (const iovec& piece : view.pieces) {
      std::memcpy(memory.data() + copied, piece.iov_base, piece.iov_len);
      copied += piece.iov_len;
    }
  }
  RETURN_IF_ERROR(Write(to, ByteOffset{target}, memory.first(copied)));
  return copied;
}

Result<uint64_t> FileIo::CopyRange(const InodePtr& from, uint64_t from_offset, const InodePtr& to, uint64_t to_offset,
                                   uint64_t length) {
  RETURN_IF_ERROR(CheckWritable(KvChange::kGrow));
  // Fix the end of the source now, so that a copy inside one file does not read its own output.
  {
    MutexLock lock(from->mutex);
    const uint64_t size = from->attributes.size;
    if (from_offset >= size) return 0;
    length = std::min(length, size - from_offset);
  }
  uint64_t done = 0;
  const size_t step_size = std::min(kCopyStep, length);
  const auto owned = std::make_unique_for_overwrite<std::byte[]>(step_size);
  const std::span<std::byte> memory(owned.get(), step_size);
  while (done < length) {
    const auto step = CopyStep(from, from_offset + done, to, to_offset + done, length - done, memory);
    // Report the bytes copied so far; the next call returns the error.
    if (!step && done == 0) return step.error();
    if (!step || *step == 0) break;
    done += *step;
  }
  return done;
}

// Makes the file at least `size` bytes long.
Result<void> FileIo::GrowTo(const InodePtr& inode, uint64_t size) {
  const auto plan = [](const File&, WritePlan*) -> Result<void> { return {}; };
  const auto apply = [&](File& file, WritePlan) {
    if (inode->attributes.size >= size) return;
    file.SetSize(size);
    Touch(inode);
  };
  return Change(inode, nullptr, plan, apply);
}

Result<std::vector<FileExtent>> FileIo::Extents(const InodePtr& inode, FileBlock first, size_t limit) {
  return WhenLoaded(
      inode, [&](const File& file) -> Result<std::vector<FileExtent>> { return file.extents().List(first, limit); });
}

Result<BlockCount> FileIo::WithoutExtent(const InodePtr& inode) {
  return WhenLoaded(inode, [&](const File& file) -> Result<BlockCount> { return file.WithoutExtent(); });
}

}  // namespace weightfs
