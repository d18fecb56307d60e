// SPDX-License-Identifier: Apache-2.0
#include "store/volume/store_guard.h"

#include <linux/magic.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "common/log.h"
#include "common/start_thread.h"
#include "common/system_calls.h"

namespace weightfs {
namespace {

// Filesystems whose locks are in this kernel. The locks of all others may be on a server.
constexpr std::array<uint64_t, 12> kLocalFilesystems = {
    EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC,       BTRFS_SUPER_MAGIC, TMPFS_MAGIC,
    RAMFS_MAGIC,      F2FS_SUPER_MAGIC,      ZONEFS_MAGIC,      0x2fc12fc1,
    0xca451a4e,       OVERLAYFS_SUPER_MAGIC, HUGETLBFS_MAGIC,   0x3153464a};  // ZFS, bcachefs, JFS

std::chrono::nanoseconds BootTime() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// A device whose transfers are synchronous: a check must not wait for the threads that wait for it.
class DeviceForReading final : public BlockDevice {
 public:
  explicit DeviceForReading(int descriptor) : descriptor_(descriptor) {}
  ByteCount size() const override { return ByteCount{kDataOffset}; }
  std::string_view path() const override { return "the pool device"; }
  void Submit(std::span<IoRequest* const> requests) override {
    for (IoRequest* request : requests) {
      const std::span<std::byte> out(request->data, request->size.value);
      const bool whole = ReadFully(descriptor_, out, request->offset.value) == std::ssize(out);
      request->OnComplete(whole ? Result<void>() : Result<void>(ErrorCode::kIo));
    }
  }
  Result<void> Flush() override { return {}; }

 private:
  const int descriptor_;
};

}  // namespace

bool MayLoseLocks(const std::string& path) {
  struct statfs status = {};
  if (statfs(path.c_str(), &status) != 0) {
    // Whoever opens it says that it is missing.
    if (errno != ENOENT) {
      spdlog::warn("{}: counts as a file on another machine, because its filesystem is unknown: {}", path,
                   std::strerror(errno));
    }
    return true;
  }
  const auto type = static_cast<uint32_t>(status.f_type);
  return std::find(kLocalFilesystems.begin(), kLocalFilesystems.end(), type) == kLocalFilesystems.end();
}

StoreGuard::StoreGuard(std::string directory, Clock clock)
    : directory_(std::move(directory)), clock_(clock ? std::move(clock) : BootTime) {}

StoreGuard::~StoreGuard() {
  {
    MutexLock lock(ending_mutex_);
    ending_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

Result<void> StoreGuard::Start(std::vector<UniqueFd> locked, std::vector<UniqueFd> devices, const Uuid& owner) {
  {
    MutexLock lock(mutex_);
    locked_ = std::move(locked);
    devices_ = std::move(devices);
    owner_ = owner;
  }
  started_ = true;
  static_cast<void>(Verify().has_value());
  ASSIGN_OR_RETURN(thread_, StartThread("weightfs-guard", [this] { Run(); }));
  return {};
}

void StoreGuard::Run() {
  MutexLock lock(ending_mutex_);
  while (!ending_ && !lost()) {
    lock.Unlock();
    static_cast<void>(Check(kValidity / 2).has_value());
    lock.Lock();
    if (!ending_) wake_.wait_for(lock.native(), kValidity / 2);
  }
}

Result<void> StoreGuard::Check(std::chrono::nanoseconds validity) {
  if (!started_.load()) return {};
  if (lost()) return ErrorCode::kReadOnly;
  const auto begin = clock_();
  const auto is_recent = [&] { return begin.count() - checked_ns_.load() < validity.count(); };
  if (is_recent()) return {};
  MutexLock lock(mutex_);
  if (is_recent()) return {};  // another thread has checked meanwhile
  if (lost()) return ErrorCode::kReadOnly;
  // Take the time again: the wait for the mutex may have been long.
  const auto examined = clock_();
  if (auto owned = Examine(); !owned) {
    const bool first = !std::exchange(reported_, true);
    if (first || lost()) {
      spdlog::critical(
          "{}: {}{}", directory_, owned.error().what,
          lost() ? "; this mount writes nothing any more: unmount it" : "; nothing is written until this is known");
    }
    return owned;
  }
  if (std::exchange(reported_, false)) spdlog::warn("{}: the store is still owned by this mount", directory_);
  checked_ns_ = examined.count();
  return {};
}

// Examines the superblocks after taking the locks: a process that has the locks names itself there before it changes
// anything else.
Result<void> StoreGuard::Examine() {
  bool held = true;
  for (const UniqueFd& file : locked_) {
    if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) continue;
    if (errno != EWOULDBLOCK) return SystemError("the locks of the store", "cannot be checked");
    held = false;
  }
  for (const UniqueFd& file : devices_) {
    DeviceForReading device(file.get());
    const auto owner = ReadOwner(device);
    if (!owner) return Error{owner.error().code, "the superblocks of the store cannot be read to find its owner"};
    if (*owner == owner_) continue;
    lost_ = true;
    return Error{ErrorCode::kReadOnly,
                 "another process has taken over the store, probably on another machine, after "
                 "the filesystem dropped the locks of this one"};
  }
  if (held) return {};
  return Error{ErrorCode::kBusy, "the filesystem dropped the locks of the store, and another process has them"};
}

Result<void> GuardedKvStore::Write(KvBatch batch) {
  if (!guard_.MayWrite()) return ErrorCode::kReadOnly;
  return KvStoreWrapper::Write(std::move(batch));
}

Result<void> GuardedKvStore::Sync() {
  RETURN_IF_ERROR(KvStoreWrapper::Sync());
  return guard_.Verify();
}

}  // namespace weightfs
