// SPDX-License-Identifier: Apache-2.0
#include "store/volume/pool_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/log.h"
#include "common/size_text.h"

namespace weightfs {
namespace {

Error DoesNotFit(const std::string& path, int descriptor, ByteCount size) {
  struct statvfs space = {};
  const std::string free_space = fstatvfs(descriptor, &space) == 0
                               ? FormatSize(ByteCount{uint64_t{space.f_bavail} * space.f_frsize})
                               : std::string("too little");
  return {ErrorCode::kNoSpace, fmt::format("{}: {} does not fit: its filesystem has {} free; choose a smaller "
                                           "--size or another directory",
                                           path, FormatSize(size), free_space)};
}

Result<void> Reserve(int descriptor, const std::string& path, ByteCount size, bool preallocate) {
  struct stat before = {};
  if (fstat(descriptor, &before) != 0) return SystemError(path, "cannot be accessed");
  const auto wanted = static_cast<off_t>(size.value);
  // A filesystem without fallocate allocates blocks when the zeros are written.
  if (preallocate && fallocate(descriptor, FALLOC_FL_KEEP_SIZE, 0, wanted) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS) {
    const int error = errno;
    // Frees what a partial reservation left beyond the end.
    if (ftruncate(descriptor, before.st_size) != 0) spdlog::warn("{}: {}", path, std::strerror(errno));
    if (error == ENOSPC || error == EFBIG || error == EDQUOT) return DoesNotFit(path, descriptor, size);
    return SystemError(path, "cannot be preallocated", error);
  }
  if (before.st_size < wanted && ftruncate(descriptor, wanted) != 0) {
    return SystemError(path, fmt::format("cannot be resized to {}", FormatSize(size)));
  }
  return {};
}

}  // namespace

Result<void> ReservePoolFile(const GuardedDirectory& store, const std::string& name, ByteCount size, bool preallocate,
                             bool* made) {
  const auto found = store.CheckFile(name);
  *made = !found.has_value() && found.error().code == ErrorCode::kNotFound;
  ASSIGN_OR_RETURN(const UniqueFd file, store.OpenFile(name, O_RDWR | O_CREAT));
  auto reserved = Reserve(file.get(), store.PathOf(name), size, preallocate);
  if (!reserved.has_value() && *made) unlink(store.PathOf(name).c_str());
  return reserved;
}

Result<void> ReserveGivenFile(const std::string& path, ByteCount size) {
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file) return SystemError(path, "cannot be opened for writing");
  return Reserve(file.get(), path, size, true);
}

}  // namespace weightfs
