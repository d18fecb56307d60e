// SPDX-License-Identifier: Apache-2.0
// The layout of open files: fallocate, seeking data and holes, copying ranges.
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "fs/operations.h"

namespace weightfs {
namespace {

std::optional<FallocateMode> ToMode(int mode) {
  switch (mode) {
    case 0: return FallocateMode::kAllocate;
    case FALLOC_FL_KEEP_SIZE: return FallocateMode::kAllocateKeepSize;
    case FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE: return FallocateMode::kPunchHole;
    case FALLOC_FL_ZERO_RANGE: return FallocateMode::kZeroRange;
    case FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE: return FallocateMode::kZeroRangeKeepSize;
    default: return std::nullopt;
  }
}

void Allocate(Filesystem& filesystem, Reply reply, const FilePtr& file, int mode, uint64_t offset, uint64_t length) {
  const std::optional<FallocateMode> known = ToMode(mode);
  if (!known.has_value()) {
    reply.Errno(EOPNOTSUPP);
    return;
  }
  const bool frees = *known == FallocateMode::kPunchHole;
  if (!frees && (offset > kMaximumFileSize || length > kMaximumFileSize - offset)) {
    reply.Errno(EFBIG);
    return;
  }
  filesystem.RunLater(std::move(reply), [&filesystem, file, known, offset, length](Reply later) {
    later.Finish(filesystem.store().Fallocate(file->inode, *known, offset, length));
  });
}

void Seek(Filesystem& filesystem, Reply reply, const FilePtr& file, uint64_t offset, int whence) {
  if (whence != SEEK_DATA && whence != SEEK_HOLE) {
    reply.Errno(EINVAL);
    return;
  }
  const SeekTarget target = whence == SEEK_DATA ? SeekTarget::kData : SeekTarget::kHole;
  const auto answer = [&filesystem, file, offset, target](Reply later) {
    const Result<uint64_t> found = filesystem.store().Seek(file->inode, offset, target);
    if (found.has_value()) {
      later.Offset(*found);
    } else {
      later.Fail(found.error());
    }
  };
  if (!file->pages->MayHoldChanges()) {
    answer(std::move(reply));
    return;
  }
  const InodeId ino = file->inode->id;
  // What a mapping wrote comes first; the kernel sends it to the receivers, so this waits elsewhere.
  filesystem.RunElsewhere(std::move(reply), [&filesystem, ino, answer](Reply later) {
    filesystem.DropPages(ino, 0, 0);
    answer(std::move(later));
  });
}

struct CopyRequest {
  FilePtr from, to;
  uint64_t from_offset = 0, to_offset = 0, length = 0;
  int flags = 0;
};

void CopyRange(Filesystem& filesystem, Reply reply, CopyRequest request) {
  // The protocol's answer has 32 bits; cp asks for about 2^63.
  constexpr uint64_t kLongest = (uint64_t{1} << 31) - kBlockSize;
  if (request.flags != 0) {
    reply.Errno(EINVAL);
    return;
  }
  request.length = std::min(request.length, kLongest);
  if (request.to_offset > kMaximumFileSize) {
    reply.Errno(EFBIG);
    return;
  }
  // After the copy the kernel throws away the pages of the range, dirty or not: stores of a mapping into the rest of
  // the first and the last page would be lost. Told so, it copies by reading and writing.
  const bool whole_pages = request.to_offset % kBlockSize == 0 && request.length % kBlockSize == 0;
  if (!whole_pages && request.to->pages->MayHaveDirtyPages()) {
    reply.Errno(EOPNOTSUPP);
    return;
  }
  filesystem.RunLater(std::move(reply), [&filesystem, request](Reply later) {
    const Result<uint64_t> copied = filesystem.store().CopyRange(request.from->inode, request.from_offset,
                                                                 request.to->inode, request.to_offset, request.length);
    if (copied.has_value()) {
      later.Written(*copied);
    } else {
      later.Fail(copied.error());
    }
  });
}

}  // namespace

void AddSpaceOperations(fuse_lowlevel_ops& operations) {
  operations.fallocate = [](fuse_req_t request, fuse_ino_t, int mode, off_t offset, off_t length,
                            fuse_file_info* file) {
    Dispatch(request, Allocate, FileOf(file), mode, static_cast<uint64_t>(offset), static_cast<uint64_t>(length));
  };
  operations.lseek = [](fuse_req_t request, fuse_ino_t, off_t offset, int whence, fuse_file_info* file) {
    Dispatch(request, Seek, FileOf(file), static_cast<uint64_t>(offset), whence);
  };
  operations.copy_file_range = [](fuse_req_t request, fuse_ino_t, off_t from_offset, fuse_file_info* from, fuse_ino_t,
                                  off_t to_offset, fuse_file_info* to, size_t length, int flags) {
    Dispatch(request, CopyRange,
             CopyRequest{.from = FileOf(from),
                         .to = FileOf(to),
                         .from_offset = static_cast<uint64_t>(from_offset),
                         .to_offset = static_cast<uint64_t>(to_offset),
                         .length = length,
                         .flags = flags});
  };
}

}  // namespace weightfs
