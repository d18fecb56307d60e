// SPDX-License-Identifier: Apache-2.0
#include "engine/file_device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "common/log.h"
#include "common/processes.h"
#include "common/shell_quote.h"
#include "common/system_calls.h"

namespace weightfs {
namespace {

constexpr std::chrono::seconds kProbeLimit{10};
constexpr std::chrono::milliseconds kLockPoll{10};

Error OpenError(ErrorCode code, const std::string& path, std::string_view what) {
  return {code, fmt::format("{}: {}", path, what)};
}

// The lock that OpenAgain takes. It belongs to the open file, not to a process: the kernel drops it with the last
// descriptor and transfer.
struct flock WriterLock(short type, uint64_t writer, off_t writers = 1) {
  return {.l_type = type, .l_whence = SEEK_SET, .l_start = static_cast<off_t>(writer), .l_len = writers, .l_pid = 0};
}

}  // namespace

FileDevice::FileDevice(std::string path, const Options& options) : path_(std::move(path)), options_(options) {}

FileDevice::~FileDevice() {
  if (ring_ != nullptr) ring_->Stop();  // it uses the descriptor
  if (file_.Close() != 0) spdlog::error("closing {}: {}", path_, std::strerror(errno));
}

Result<std::unique_ptr<FileDevice>> FileDevice::Open(const std::string& path, const Options& options) {
  std::unique_ptr<FileDevice> device(new FileDevice(path, options));
  if (options.queue_depth == 0) return OpenError(ErrorCode::kInvalid, path, "the queue depth must be at least 1");
  RETURN_IF_ERROR(device->OpenDescriptor());
  RETURN_IF_ERROR(device->Lock());
  RETURN_IF_ERROR(device->Measure());
  ASSIGN_OR_RETURN(device->ring_, ThreadedRing::Create({device->file_.get(), path, options.queue_depth}));
  return device;
}

void FileDevice::Submit(std::span<IoRequest* const> requests) {
  size_t accepted = 0;
  while (accepted < requests.size()) {
    if (const auto refused = Check(*requests[accepted])) {
      ring_->Submit(requests.first(accepted));
      ring_->Reject(requests[accepted], *refused);
      requests = requests.subspan(accepted + 1);
      accepted = 0;
    } else {
      ++accepted;
    }
  }
  ring_->Submit(requests);
}

Result<void> FileDevice::Write(ByteOffset offset, std::span<const std::byte> in) {
  const SynchronousRequest request(IoRequest::Operation::kWrite, offset, in);
  if (const auto refused = Check(request)) return *refused;
  if (WriteFully(file_.get(), in, offset.value)) return {};
  return ReportIoError("write", offset, request.size, path_, errno);
}

void FileDevice::Perform(IoRequest& request) {
  if (request.operation != IoRequest::Operation::kWrite) return BlockDevice::Perform(request);
  request.OnComplete(Write(request.offset, {request.data, request.size.value}));
}

Result<void> FileDevice::Flush() {
  if (options_.may_write && !options_.may_write()) return ErrorCode::kReadOnly;
  if (RepeatInterrupted([&] { return fdatasync(file_.get()); }) != 0) {
    return ReportIoError("flush", ByteOffset{0}, size_, path_, errno);
  }
  // A deleted file takes every write and keeps none. Not fstat(2): after a look at the times the next write changes
  // them (multigrain timestamps, Linux 6.13), and the next flush has to write the inode.
  struct statx status = {};
  constexpr unsigned kWanted = STATX_NLINK | STATX_TYPE;
  if (statx(file_.get(), "", AT_EMPTY_PATH, kWanted, &status) == 0 && S_ISREG(status.stx_mode) &&
      status.stx_nlink == 0) {
    spdlog::error("{}: was deleted while in use: what is written to it is lost", path_);
    return ErrorCode::kIo;
  }
  return {};
}

Result<UniqueFd> FileDevice::OpenAgain(bool write, uint64_t writer) const {
  const int flags = fcntl(file_.get(), F_GETFL);
  if (flags < 0) return SystemError(path_, "cannot look at the pool device");
  if (write && options_.read_only) return ErrorCode::kReadOnly;
  if (write && options_.may_write) {
    return Error{ErrorCode::kNotSupported, "a store on a distributed filesystem has no leases for writing"};
  }
  // Opened by descriptor, because another file may have the path by now.
  const std::string self = fmt::format("/proc/self/fd/{}", file_.get());
  UniqueFd again(open(self.c_str(), O_CLOEXEC | (write ? O_RDWR : O_RDONLY) | (flags & O_DIRECT)));
  if (!again) return SystemError(path_, "cannot open the pool device once more");
  struct flock lock = WriterLock(F_RDLCK, writer);
  if (!write || fcntl(again.get(), F_OFD_SETLK, &lock) == 0) return again;
  return SystemError(path_, "cannot lock the pool device for a writer");
}

Result<UniqueFd> FileDevice::Duplicate() const {
  UniqueFd copy(fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return SystemError(path_, "cannot duplicate the descriptor of the pool device");
  return copy;
}

Result<bool> FileDevice::HasWriter(uint64_t writer) const {
  struct flock lock = WriterLock(F_WRLCK, writer);
  if (fcntl(file_.get(), F_OFD_GETLK, &lock) != 0) return SystemError(path_, "cannot look for a writer");
  return lock.l_type != F_UNLCK;
}

Result<void> FileDevice::OpenDescriptor() {
  // O_PATH first, because opening some files has side effects; later calls use this descriptor, not the path.
  const UniqueFd found(open(path_.c_str(), O_PATH | O_CLOEXEC | (options_.follow_links ? 0 : O_NOFOLLOW)));
  struct stat status = {};
  if (!found || fstat(found.get(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return OpenError(ErrorCode::kNotFound, path_, "no such file or device; check the path of the pool device");
    }
    return SystemError(path_, "cannot look at the pool device");
  }
  is_block_device_ = S_ISBLK(status.st_mode);
  if (!is_block_device_ && !S_ISREG(status.st_mode)) {
    return OpenError(ErrorCode::kIo, path_, "neither a regular file nor a block device");
  }
  int flags = O_CLOEXEC | (options_.read_only ? O_RDONLY : O_RDWR);
  // O_EXCL without O_CREAT works on block devices only: the open fails while a mount, swap or another exclusive
  // user has the device.
  if (is_block_device_ && options_.exclusive) flags |= O_EXCL;
  const std::string self = fmt::format("/proc/self/fd/{}", found.get());
  file_ = UniqueFd(open(self.c_str(), flags | (options_.direct ? O_DIRECT : 0)));
  while (!file_ && errno == EBUSY && std::chrono::steady_clock::now() - start_ < options_.lock_wait) {
    std::this_thread::sleep_for(kLockPoll);
    file_ = UniqueFd(open(self.c_str(), flags | (options_.direct ? O_DIRECT : 0)));
  }
  if (!file_ && errno == EINVAL && options_.direct) {
    spdlog::warn("{}: the filesystem refuses O_DIRECT; transfers go through the page cache and are slower", path_);
    file_ = UniqueFd(open(self.c_str(), flags));
  }
  if (file_) return {};
  if (errno == EBUSY) {
    return InUse("the device is in use (mounted, or open in another store)");
  }
  return SystemError(path_, "cannot open the pool device");
}

// A store that is open by another path has this lock and no other that can be found.
Error FileDevice::InUse(std::string_view otherwise) const {
  const UniqueFd file(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const pid_t holder = file ? FindLockHolder(file.get(), 0) : 0;
  if (holder <= 0) return OpenError(ErrorCode::kBusy, path_, otherwise);
  return OpenError(ErrorCode::kBusy, path_, fmt::format("in use by {}; unmount its store, or wait for it to end",
                                                        DescribeProcess(holder)));
}

bool FileDevice::HeldOnlyByProbe() const {
  return is_block_device_ && flock(file_.get(), LOCK_SH | LOCK_NB) == 0 && flock(file_.get(), LOCK_UN) == 0;
}

Result<void> FileDevice::Lock() {
  if (!options_.exclusive) return {};
  while (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return SystemError(path_, "cannot lock the pool device");
    const auto limit =
        HeldOnlyByProbe() ? std::max<std::chrono::milliseconds>(kProbeLimit, options_.lock_wait) : options_.lock_wait;
    if (std::chrono::steady_clock::now() - start_ >= limit) {
      return InUse("locked by another process; is the store mounted already?");
    }
    std::this_thread::sleep_for(kLockPoll);
  }
  return options_.read_only ? Result<void>() : CheckNoWriters();
}

Result<void> FileDevice::CheckNoWriters() {
  struct flock lock = WriterLock(F_WRLCK, 0, /*writers=*/0);  // any
  if (fcntl(file_.get(), F_OFD_GETLK, &lock) != 0) return SystemError(path_, "cannot look for writers");
  if (lock.l_type == F_UNLCK) return {};
  return OpenError(ErrorCode::kBusy, path_,
                   fmt::format("a program still holds leases for writing on it from an earlier mount; end it "
                               "('fuser -v {}' shows it)",
                               ShellQuote(path_)));
}

Result<void> FileDevice::Measure() {
  uint64_t bytes = 0;
  if (is_block_device_) {
    int sector = 0;
    if (ioctl(file_.get(), BLKGETSIZE64, &bytes) != 0 || ioctl(file_.get(), BLKSSZGET, &sector) != 0) {
      return SystemError(path_, "cannot read the size of the device");
    }
    if (sector < 0 || static_cast<uint64_t>(sector) > kBlockSize) {
      return OpenError(ErrorCode::kIo, path_,
                       fmt::format("its sectors of {} bytes are larger than a block of {}", sector, kBlockSize));
    }
  } else {
    struct stat status = {};
    if (fstat(file_.get(), &status) != 0) return SystemError(path_, "cannot read the size of the file");
    bytes = static_cast<uint64_t>(status.st_size);
  }
  size_ = ByteCount{RoundDown(bytes, kBlockSize)};
  return {};
}

std::optional<ErrorCode> FileDevice::Check(const IoRequest& request) const {
  const uint64_t offset = request.offset.value;
  const uint64_t size = request.size.value;
  const bool aligned =
      offset % kBlockSize == 0 && size % kBlockSize == 0 && reinterpret_cast<uintptr_t>(request.data) % kBlockSize == 0;
  if (!aligned || offset > size_.value || size > size_.value - offset) {
    spdlog::critical("{}: a request of {} bytes at offset {} of {} bytes is not aligned or not inside (our bug)", path_,
                     size, offset, size_.value);
    return ErrorCode::kInvalid;
  }
  if (request.operation != IoRequest::Operation::kWrite) return std::nullopt;
  if (options_.read_only || (options_.may_write && !options_.may_write())) return ErrorCode::kReadOnly;
  return std::nullopt;
}

}  // namespace weightfs
