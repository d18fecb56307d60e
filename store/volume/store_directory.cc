// SPDX-License-Identifier: Apache-2.0
#include "store/volume/store_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "common/guarded_directory.h"
#include "common/log.h"
#include "common/processes.h"
#include "store/volume/device_contents.h"
#include "store/volume/open_catalog.h"

namespace weightfs {
namespace {

// A valid superblock must also match store.json.
Result<void> CheckMatch(const std::string& directory, const StoreDescription& description, size_t index,
                        const std::string& path, const Superblock& superblock) {
  const auto& expected = description.devices[index];
  const auto refuse = [&](std::string why) {
    return Error{ErrorCode::kCorrupt,
                 fmt::format("{}: {}; correct the paths in {}/{}", path, why, directory, kDescriptionName)};
  };
  if (superblock.store_id != description.id) {
    return refuse(
        fmt::format("belongs to the store {}, not to {}", ToString(superblock.store_id), ToString(description.id)));
  }
  if (superblock.device_index.value != index) {
    return refuse(fmt::format("is device {} of the store, not device {}", superblock.device_index.value, index));
  }
  if (superblock.device_id != expected.id) {
    return refuse(fmt::format("is the device {}, not {}", ToString(superblock.device_id), ToString(expected.id)));
  }
  if (superblock.device_count != description.devices.size()) {
    return refuse(
        fmt::format("is one of {} devices, but {} are listed", superblock.device_count, description.devices.size()));
  }
  if (superblock.device_size != expected.size) {
    return refuse(fmt::format("was formatted with {} bytes, but {} are listed", superblock.device_size.value,
                              expected.size.value));
  }
  return {};
}

// Checks a device that is a file in the store directory. The path of any other device was chosen by the store's
// creator, and may contain links (/dev/disk/by-id).
Result<void> CheckOwnDevice(const GuardedDirectory& store, const std::string& path) {
  auto checked = store.CheckFile(path, /*or_block_device=*/true);
  if (checked.has_value() || checked.error().code != ErrorCode::kPermission) return {};  // left to FileDevice
  return Error{checked.error().code,
               fmt::format("{}, or write its full path into {}", checked.error().what, store.PathOf(kDescriptionName))};
}

// The locks of a store that is named by its devices are those of the devices.
bool NeedsGuard(const StoreLocation& store, const StoreDescription& description) {
  const auto& devices = description.devices;
  return (!store.described && MayLoseLocks(store.directory)) ||
         std::any_of(devices.begin(), devices.end(), [&](const StoreDescription::Device& device) {
           return MayLoseLocks(DevicePath(store.directory, device));
         });
}

std::function<bool()> MayWrite(const StoreParts& parts) {
  if (parts.guard == nullptr) return {};
  return [guard = parts.guard.get()] { return guard->MayWrite(); };
}

// True if the process that has the device locked was killed. With another directory for its index, no note says so.
bool IsHolderEnding(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const pid_t holder = file ? FindLockHolder(file.get(), 0) : 0;
  return holder > 0 && IsEnding(holder);
}

Result<void> OpenDevices(const std::string& directory, const OpenOptions& options, StoreParts* parts) {
  FileDevice::Options device_options{.queue_depth = options.queue_depth,
                                     .read_only = options.read_only,
                                     .exclusive = options.lock,
                                     .lock_wait = DeviceLockWait(parts->lock),
                                     .may_write = MayWrite(*parts)};
  for (size_t index = 0; index < parts->description.devices.size(); ++index) {
    const StoreDescription::Device& listed = parts->description.devices[index];
    const std::string path = DevicePath(directory, listed);
    device_options.follow_links = listed.path.starts_with('/');
    if (!device_options.follow_links) {
      ASSIGN_OR_RETURN(const GuardedDirectory store, GuardedDirectory::Open(directory));
      RETURN_IF_ERROR(CheckOwnDevice(store, listed.path));
    }
    auto opened = FileDevice::Open(path, device_options);
    if (!opened && opened.error().code == ErrorCode::kBusy) {
      if (IsHolderEnding(path)) device_options.lock_wait = kAfterKill;
      opened = FileDevice::Open(path, device_options);  // again, because the holder may have ended by now
    }
    if (!opened) return opened.error();
    std::unique_ptr<FileDevice> device = *std::move(opened);
    ASSIGN_OR_RETURN(const Superblock superblock, ReadSuperblock(*device));
    RETURN_IF_ERROR(CheckMatch(directory, parts->description, index, path, superblock));
    if (superblock.read_only_features && !options.read_only) {
      return Error{ErrorCode::kReadOnly, fmt::format("{}: a newer weightfs enabled features that this version "
                                                     "cannot write; mount with -o ro or use the newer version",
                                                     path)};
    }
    parts->devices.push_back(std::move(device));
    parts->superblocks.push_back(superblock);
    parts->was_clean = parts->was_clean && superblock.clean;
  }
  return {};
}

// Removes permissions from files that would reveal names or data. store.json contains neither and is not changed.
Result<void> TakePermissionsOfOthers(const std::string& directory, const StoreDescription& description) {
  ASSIGN_OR_RETURN(const GuardedDirectory store, GuardedDirectory::Open(directory));
  for (const char* name : {kLockName, kLogName}) store.RestrictFile(name);
  for (const StoreDescription::Device& device : description.devices) {
    if (device.path == kPoolName) store.RestrictFile(device.path);
  }
  return {};
}

// The lock of the store's directory. To read a store that was named by its devices, their locks are enough, and leave
// nothing behind.
Result<StoreLock> Lock(const StoreLocation& store, bool read_only) {
  if (!store.described) return StoreLock::Acquire(store);
  if (read_only && access(store.directory.c_str(), F_OK) != 0 && errno == ENOENT) return StoreLock();
  const auto prepared = PrepareIndex(store);
  auto lock = prepared ? StoreLock::Acquire(store) : Result<StoreLock>(prepared.error());
  if (lock || !read_only) return lock;
  const ErrorCode code = lock.error().code;
  if (code == ErrorCode::kInvalid || code == ErrorCode::kExists || code == ErrorCode::kBusy) return lock;
  spdlog::warn("{}; the store is read without a directory for its index", lock.error().what);
  return StoreLock();
}

Result<void> WriteAll(std::span<BlockDevice* const> devices, std::vector<Superblock>& superblocks, bool clean) {
  for (size_t index = 0; index < devices.size(); ++index) {
    superblocks[index].clean = clean;
    RETURN_IF_ERROR(WriteSuperblock(*devices[index], superblocks[index]));
  }
  return {};
}

// Before a superblock says that the replica is kept, roots from before a program that did not keep them must be gone.
Result<void> ClaimReplica(std::span<BlockDevice* const> devices, std::vector<Superblock>& superblocks) {
  const bool kept = std::ranges::all_of(superblocks, &Superblock::keeps_replica);
  if (kept && std::ranges::all_of(superblocks, &Superblock::keeps_lists)) return {};
  RETURN_IF_ERROR(EraseRoots(devices, kept ? ErasedRoots::kWithLists : ErasedRoots::kAll));
  for (Superblock& superblock : superblocks) superblock.keeps_replica = superblock.keeps_lists = true;
  return {};
}

}  // namespace

Result<UniqueFd> OpenLog(const std::string& directory) {
  ASSIGN_OR_RETURN(const GuardedDirectory store, GuardedDirectory::Open(directory));
  return store.OpenFile(kLogName, O_WRONLY | O_APPEND | O_CREAT);
}

Result<void> RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? Error{ErrorCode::kIo, fmt::format("{}: cannot be removed: {}", path, error.message())}
               : Result<void>();
}

Result<StoreParts> OpenStoreParts(const StoreLocation& store, const OpenOptions& options) {
  const std::string& directory = store.directory;
  OpenOptions effective = options;
  if (!options.lock) effective.read_only = true;
  StoreParts parts;
  ASSIGN_OR_RETURN(parts.description, Describe(store));
  if (options.lock) {
    ASSIGN_OR_RETURN(parts.lock, Lock(store, effective.read_only));
    parts.lock.Claim();  // claim now: if this process is killed during the open, the next one waits for the devices
  }
  bool rewrites = FindMovedDevices(directory, options.device_links, &parts.description);
  if (options.lock && !effective.read_only && (options.guard || NeedsGuard(store, parts.description))) {
    parts.guard = std::make_unique<StoreGuard>(store.name);
  }
  // Open the devices first: opening the catalog may write to it, and a wrong device must not change anything.
  RETURN_IF_ERROR(OpenDevices(directory, effective, &parts));
  if (store.described && !effective.read_only) {
    const auto listed = ReadStoreDescription(directory);
    rewrites = !listed || ToJson(*listed) != ToJson(parts.description);
  }
  // Before the index: from then on it is known whose directory this is.
  if (rewrites && !effective.read_only) RETURN_IF_ERROR(WriteStoreDescription(directory, parts.description));
  RETURN_IF_ERROR(OpenCatalog(store, effective, &parts));
  if (!effective.read_only) {
    RETURN_IF_ERROR(TakePermissionsOfOthers(directory, parts.description));
    const auto devices = Borrow(parts.devices);
    RETURN_IF_ERROR(ClaimReplica(devices, parts.superblocks));
    RETURN_IF_ERROR(WriteAll(devices, parts.superblocks, /*clean=*/false));
  }
  return parts;
}

Result<void> MarkLogged(std::span<BlockDevice* const> devices, std::vector<Superblock>& superblocks) {
  for (Superblock& superblock : superblocks) {
    superblock.logged = true;
    superblock.catalog_sequence = superblock.catalog_chain = 0;
  }
  return WriteAll(devices, superblocks, /*clean=*/false);
}

Result<void> MarkClean(std::span<BlockDevice* const> devices, std::vector<Superblock>& superblocks) {
  return WriteAll(devices, superblocks, /*clean=*/true);
}

Result<void> MarkClean(std::vector<std::unique_ptr<BlockDevice>>& devices, std::vector<Superblock>& superblocks) {
  return MarkClean(Borrow(devices), superblocks);
}

Result<void> MarkCleanAgain(const std::string& directory, const StoreDescription& description) {
  StoreParts parts;
  parts.description = description;
  RETURN_IF_ERROR(OpenDevices(directory, {}, &parts));
  return MarkClean(parts.devices, parts.superblocks);
}

std::vector<BlockDevice*> Borrow(const std::vector<std::unique_ptr<BlockDevice>>& devices) {
  std::vector<BlockDevice*> borrowed;
  for (const auto& device : devices) borrowed.push_back(device.get());
  return borrowed;
}

std::vector<ByteCount> DeviceSizes(const std::vector<Superblock>& superblocks) {
  std::vector<ByteCount> sizes;
  for (const Superblock& superblock : superblocks) sizes.push_back(superblock.device_size);
  return sizes;
}

}  // namespace weightfs
