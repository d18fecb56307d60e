// SPDX-License-Identifier: Apache-2.0
#include "hdf5/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>

#include "common/result.h"
#include "common/units.h"
#include "hdf5/engine.h"

namespace weightfs::hdf5 {
namespace {

constexpr mode_t kMode = 0666;  // as HDF5's own drivers; the umask applies
constexpr size_t kLongestSegment = 8 * kMiB;
constexpr size_t kSegmentsInCache = 8;

size_t SegmentSize(const Settings& settings) {
  return std::max(RoundDown(std::min(settings.cache / kSegmentsInCache, kLongestSegment), kBlockSize), kBlockSize);
}

}  // namespace

// Half of the memory is for reads, half for writes.
File::File(std::string path, const OpenOptions& options, const Settings& settings)
    : path_(std::move(path)),
      options_(options),
      settings_(settings),
      writes_(&pool_, SegmentSize(settings)),
      cache_(&pool_, settings.cache / 2) {}

File::~File() {
  if (!descriptor_) return;
  // A caller that needs the error calls Close().
  [[maybe_unused]] const auto closed = Close();
}

Result<std::unique_ptr<File>> File::Open(const std::string& path, const OpenOptions& options,
                                         const Settings& settings) {
  RETURN_IF_ERROR(Check(settings));
  auto file = std::unique_ptr<File>(new File(path, options, settings));
  const int flags = (options.write ? O_RDWR : O_RDONLY) | (options.truncate ? O_TRUNC : 0) | O_CLOEXEC;
  int number = open(path.c_str(), flags | (options.create && options.exclusive ? O_CREAT | O_EXCL : 0), kMode);
  file->name_is_new_ = options.create && options.exclusive;
  if (number < 0 && errno == ENOENT && options.create && !options.exclusive) {
    number = open(path.c_str(), flags | O_CREAT, kMode);
    file->name_is_new_ = true;
  }
  if (number < 0) return SystemError(path, "cannot open it with HDF5's driver weightfs");
  file->descriptor_ = UniqueFd(number);
  struct stat status {};
  if (fstat(number, &status) != 0) return SystemError(path, "fstat failed");
  if (S_ISDIR(status.st_mode)) return SystemError(path, "cannot open it with HDF5's driver weightfs", EISDIR);
  file->device_ = status.st_dev;
  file->inode_ = status.st_ino;
  file->size_ = file->file_size_ = static_cast<uint64_t>(status.st_size);
  file->incomplete_ = file->name_is_new_ || options.truncate;
  return file;
}

Error File::Failed(const char* action, uint64_t offset, uint64_t size, int error_number) const {
  return {ErrorCode{error_number},
          fmt::format("{}: {} of {} bytes at offset {}: {}", path_, action, size, offset, std::strerror(error_number)),
          path_, offset};
}

Error File::WithPath(Error error) const {
  if (error.path != path_) error.what = fmt::format("{}: {}", path_, ToString(error));
  error.path = path_;
  return error;
}

Result<void> File::CheckRange(const char* action, uint64_t offset, uint64_t size) const {
  uint64_t end = 0;
  if (__builtin_add_overflow(offset, size, &end) || end > INT64_MAX) return Failed(action, offset, size, EFBIG);
  return {};
}

Result<std::shared_ptr<client::Handle>> File::GetHandle() const { return WithPath(Engine::Shared().Get(settings_)); }

// Returns the descriptor for handles. On filesystems other than a weightfs mount, O_DIRECT bypasses the page cache.
int File::TransferDescriptor() {
  if (!tried_direct_) {
    tried_direct_ = true;
    const auto name = fmt::format("/proc/self/fd/{}", descriptor_.get());
    direct_descriptor_ = UniqueFd(open(name.c_str(), (options_.write ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC));
  }
  return direct_descriptor_ ? direct_descriptor_.get() : descriptor_.get();
}

Result<void> File::Truncate(uint64_t size) {
  if (IsForked()) return {};
  incomplete_ = false;
  if (size == size_ && size >= file_size_) {
    // The file has this size, or buffered writes will extend it to this size.
    if (file_size_ == size || writes_.end() == size) return {};
  }
  RETURN_IF_ERROR(CheckRange("truncation", size, 0));
  RETURN_IF_ERROR(AwaitWrites(0, UINT64_MAX));
  RETURN_IF_ERROR(WithPath(writes_.Discard(size, UINT64_MAX)));
  cache_.Drop(std::min(size, size_), UINT64_MAX);
  next_read_ = UINT64_MAX;
  if (file_size_ != size && ftruncate(descriptor_.get(), static_cast<off_t>(size)) != 0) {
    return Failed("truncation", size, 0, errno);
  }
  unsynced_ = true;
  size_ = file_size_ = size;
  return {};
}

Result<void> File::Lock(bool exclusive) {
  if (flock(descriptor_.get(), (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
    const int error_number = errno;
    const char* why = error_number == EAGAIN
                          ? "another program has the file open; close it there, or set HDF5_USE_FILE_LOCKING=FALSE if "
                            "this is safe"
                          : "set HDF5_USE_FILE_LOCKING=FALSE if the filesystem has no locks";
    return Error{ErrorCode{error_number},
                 fmt::format("{}: unable to lock file: {}: {}", path_, std::strerror(error_number), why), path_};
  }
  // The previous holder of the lock may have changed the file.
  if (writes_.empty()) cache_.Clear();
  return {};
}

Result<void> File::Unlock() {
  if (IsForked()) return {};  // the lock is that of the parent's descriptor, too
  RETURN_IF_ERROR(Flush(false));
  if (flock(descriptor_.get(), LOCK_UN) != 0 && errno != ENOSYS) return SystemError(path_, "cannot unlock the file");
  return {};
}

Result<void> File::Close() {
  const bool durable = settings_.sync == Sync::kClose;
  // HDF5 writes the superblock last: from version 3 on, it then says that no program writes to the file any more.
  unsynced_ |= durable && superblock_unsynced_;
  auto flushed = Flush(durable);
  cache_.Clear();
  // The segments that are left could not be written. No operation may access their memory any more.
  for (auto& [begin, segment] : writes_.segments()) {
    if (segment.operation != nullptr && !IsForked()) segment.operation->Wait();
  }
  // Network filesystems may report a failed write only at close.
  for (UniqueFd* descriptor : {&direct_descriptor_, &descriptor_}) {
    if (descriptor->Close() != 0 && flushed.has_value()) flushed = SystemError(path_, "closing the file failed");
  }
  return flushed;
}

}  // namespace weightfs::hdf5
