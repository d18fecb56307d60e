// SPDX-License-Identifier: Apache-2.0
#include "meta/reserve_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/log.h"
#include "common/units.h"

namespace weightfs {
namespace {

constexpr uint64_t kLargestPiece = 16 * kMiB, kSmallestPiece = 64 * kKiB;

}  // namespace

Result<ReserveFile> ReserveFile::Open(const GuardedDirectory& directory, const std::string& name) {
  ASSIGN_OR_RETURN(UniqueFd descriptor, directory.OpenFile(name, O_RDWR | O_CREAT));
  struct stat status = {};
  if (fstat(descriptor.get(), &status) != 0) return SystemError(directory.PathOf(name), "cannot be examined");
  // A copy of the store may have holes in place of the space.
  const uint64_t held = std::min<uint64_t>(status.st_size, uint64_t{512} * status.st_blocks);
  ReserveFile file(directory.PathOf(name), std::move(descriptor), status.st_size);
  if (held < file.size_) file.Shrink(0);
  return file;
}

void ReserveFile::Resize(uint64_t target) {
  if (target < size_) return Shrink(target);
  for (uint64_t piece = kLargestPiece; supported_ && size_ < target && piece >= kSmallestPiece;) {
    if (!Grow(std::min(piece, target - size_))) piece /= 2;
  }
}

bool ReserveFile::Grow(uint64_t bytes) {
  int failed;
  do {
    failed = fallocate(descriptor_.get(), 0, static_cast<off_t>(size_), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (failed == EINTR);
  if (failed == 0) {
    size_ += bytes;
    return true;
  }
  supported_ = failed == ENOSPC || failed == EDQUOT;
  Shrink(size_);  // a part may have been allocated
  return false;
}

void ReserveFile::Shrink(uint64_t size) {
  if (ftruncate(descriptor_.get(), static_cast<off_t>(size)) == 0) {
    size_ = size;
  } else {
    spdlog::warn("{}", ToString(SystemError(path_, "the reserve of the catalog cannot be made smaller")));
  }
}

}  // namespace weightfs
