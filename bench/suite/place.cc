// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/place.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "lease/ioctl.h"

namespace weightfs::bench {
namespace {

constexpr const char* kEvictorName = "weightfs-bench-evictor";

Result<void> WriteEvictor(const std::string& path, uint64_t size) {
  ASSIGN_OR_RETURN(File file, File::Open(path, O_WRONLY | O_CREAT | O_TRUNC));
  std::vector<std::byte> piece(4 * kMiB);
  FillPattern(piece.data(), piece.size(), 99);
  for (uint64_t at = 0; at < size; at += piece.size()) {
    if (write(file.get(), piece.data(), piece.size()) != static_cast<ssize_t>(piece.size())) {
      return SystemError(path, "cannot be written");
    }
  }
  if (fsync(file.get()) != 0) return SystemError(path, "fsync");
  return {};
}

}  // namespace

Result<Place> Place::Open(Options options) {
  Place place;
  ASSIGN_OR_RETURN(place.handle_, File::Open(options.directory, O_RDONLY | O_DIRECTORY));
  struct statfs status = {};
  if (fstatfs(place.handle_.get(), &status) != 0) return SystemError(options.directory, "statfs");
  place.is_tmpfs_ = status.f_type == TMPFS_MAGIC;
  place.options_ = std::move(options);
  return place;
}

std::optional<MountCounters> Place::Counters() const {
  weightfs_stats stats{};
  stats.version = WEIGHTFS_IOC_VERSION;
  if (!is_weightfs() || ioctl(handle_.get(), WEIGHTFS_IOC_STATS, &stats) != 0) return std::nullopt;
  return MountCounters{stats.device_read_bytes, stats.device_written_bytes, stats.buffer_capacity};
}

Result<void> Place::MakeCold(const std::string& path) {
  ASSIGN_OR_RETURN(const File file, File::Open(path, O_RDONLY));
  if (fsync(file.get()) != 0) return SystemError(path, "fsync");
  posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (options_.drop_caches) {
    ASSIGN_OR_RETURN(const File knob, File::Open("/proc/sys/vm/drop_caches", O_WRONLY));
    if (write(knob.get(), "3", 1) != 1) return SystemError("/proc/sys/vm/drop_caches", "cannot be written");
  }
  if (!is_weightfs()) return {};
  if (can_drop_) {
    if (ioctl(file.get(), WEIGHTFS_IOC_DROP_CACHE) == 0) return {};
    if (errno != ENOTTY) return SystemError(path, "its cache cannot be dropped");
    can_drop_ = false;
  }
  return PushOut();
}

Result<void> Place::PushOut() {
  const auto counters = Counters();
  const uint64_t size = RoundUp(counters.has_value() ? counters->buffer_capacity : 512 * kMiB, 4 * kMiB) + 32 * kMiB;
  const std::string path = Path(kEvictorName);
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0 || static_cast<uint64_t>(status.st_size) < size) {
    RETURN_IF_ERROR(WriteEvictor(path, size));
  }
  ASSIGN_OR_RETURN(const File file, File::Open(path, O_RDONLY));
  std::vector<std::byte> piece(kMiB);
  ssize_t got = 0;
  while ((got = read(file.get(), piece.data(), piece.size())) > 0) {
  }
  if (got < 0) return SystemError(path, "cannot be read");
  posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

Result<void> Place::Remove(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return SystemError(path, "cannot be removed");
  fsync(handle_.get());
  return {};
}

}  // namespace weightfs::bench
