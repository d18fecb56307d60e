// SPDX-License-Identifier: Apache-2.0
// Allocation and layout of open files: fallocate, seeking data and holes, copying ranges.
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

// Runs `operation(reply)`, which changes the range, while the kernel has no page of it. The kernel drops its pages
// after the reply, dirty or not, so the range accepts new pages only then.
template <typename Operation>
void RunWithoutPages(Filesystem& filesystem, Reply reply, const FilePtr& file, ByteRange range, Operation operation) {
  const auto direct = std::make_shared<InodePages::DirectWrite>(*file->pages, range);
  const auto run = [&filesystem, file, direct, operation](Reply now) {
    filesystem.RunOnPool(std::move(now), [file, direct, operation](Reply later) {
      operation(std::move(later));
      direct->End();
    });
  };
  if (!direct->must_drop()) {
    run(std::move(reply));
    return;
  }
  filesystem.RunOnPagePool(std::move(reply), [&filesystem, file, direct, run](Reply later) {
    const Result<void> dropped = filesystem.DropPages(*file->inode, *direct);
    if (!dropped.has_value()) return later.Fail(dropped.error());
    run(std::move(later));
  });
}

void Allocate(Filesystem& filesystem, Reply reply, const FilePtr& file, int mode, uint64_t offset, uint64_t length) {
  filesystem.NoteChange(*file, 0);
  const std::optional<FallocateMode> known = ToMode(mode);
  if (!known.has_value()) return reply.Errno(EOPNOTSUPP);
  const bool frees = *known == FallocateMode::kPunchHole;
  if (!frees && (offset > kMaximumFileSize || length > kMaximumFileSize - offset)) return reply.Errno(EFBIG);
  const auto allocate = [&filesystem, file, known, offset, length](Reply later) {
    later.Finish(filesystem.store().files().Fallocate(file->inode, *known, offset, length));
  };
  if (*known == FallocateMode::kAllocate || *known == FallocateMode::kAllocateKeepSize) {
    filesystem.RunOnPool(std::move(reply), allocate);  // changes no byte
  } else {
    RunWithoutPages(filesystem, std::move(reply), file, {offset, offset + length}, allocate);
  }
}

void Seek(Filesystem& filesystem, Reply reply, const FilePtr& file, uint64_t offset, int whence) {
  if (whence != SEEK_DATA && whence != SEEK_HOLE) return reply.Errno(EINVAL);
  const SeekTarget target = whence == SEEK_DATA ? SeekTarget::kData : SeekTarget::kHole;
  const auto answer = [&filesystem, file, offset, target](Reply later) {
    later.Offset(filesystem.store().files().Seek(file->inode, offset, target));
  };
  if (!file->pages->MayHoldChanges()) {
    filesystem.RunOnReceiverOrPool(std::move(reply), answer);
    return;
  }
  const InodeId ino = file->inode->id;
  // Fetch changes made through mappings first. The kernel sends them to the receivers, so wait on another thread.
  filesystem.RunOnPagePool(std::move(reply), [&filesystem, ino, answer](Reply later) {
    const Result<void> dropped = filesystem.DropPages(ino, kWholeFile);
    if (!dropped.has_value()) return later.Fail(dropped.error());
    answer(std::move(later));
  });
}

struct CopyRequest {
  FilePtr from, to;
  uint64_t from_offset = 0, to_offset = 0, length = 0;
  int flags = 0;
};

// True if the copy fills a page of the target partially. A page at the end of the target counts as full.
bool FillsPartOfAPage(const CopyRequest& request) {
  static const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t source = SizeOf(*request.from->inode);
  const uint64_t length = std::min(request.length, source - std::min(source, request.from_offset));
  const uint64_t end = request.to_offset + length;
  return request.to_offset % page != 0 || (end % page != 0 && end < SizeOf(*request.to->inode));
}

void CopyRange(Filesystem& filesystem, Reply reply, CopyRequest request) {
  filesystem.NoteChange(*request.to, 0);
  // The protocol returns 32 bits; cp requests about 2^63.
  constexpr uint64_t kLongest = (uint64_t{1} << 31) - kBlockSize;
  if (request.flags != 0) return reply.Errno(EINVAL);
  request.length = std::min(request.length, kLongest);
  if (request.to_offset > kMaximumFileSize) return reply.Errno(EFBIG);
  // After the copy the kernel drops the pages of the range, dirty or not. That would lose stores through a mapping that
  // were made after the copy, or to the rest of the first and last page. With this error the kernel copies by reading
  // and writing instead.
  if (FillsPartOfAPage(request) || request.to->pages->MayHaveDirtyPages()) return reply.Errno(EOPNOTSUPP);
  const auto copy = [&filesystem, request](Reply later) {
    later.Written(filesystem.store().files().CopyRange(request.from->inode, request.from_offset, request.to->inode,
                                                       request.to_offset, request.length));
  };
  const ByteRange range{request.to_offset, request.to_offset + request.length};
  RunWithoutPages(filesystem, std::move(reply), request.to, range, copy);
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
