// SPDX-License-Identifier: Apache-2.0
#include "store/volume/recover_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>

#include "common/guarded_directory.h"
#include "engine/file_device.h"
#include "meta/keys.h"
#include "meta/records.h"
#include "meta/rocks_kv_store.h"
#include "store/volume/device_contents.h"
#include "store/volume/disk_partition.h"
#include "store/wal/wal_reader.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

// Run sets the members step by step.
class Recovery {
 public:
  Recovery(std::string directory, const RecoverOptions& options)
      : directory_(std::move(directory)), options_(options) {}

  // Rebuilds store.json and superblocks.
  Result<void> Run(RecoverReport* report) {
    RETURN_IF_ERROR(LockDirectory());
    RETURN_IF_ERROR(OpenDevices());
    RETURN_IF_ERROR(FindRoot());
    ASSIGN_OR_RETURN(const std::vector<size_t> superblocks, LostSuperblocks());
    if (newer_ && !superblocks.empty()) return *newer_;
    for (const size_t index : superblocks) {
      RETURN_IF_ERROR(RebuildSuperblock(index));
      report->superblocks.push_back(devices_[index].path);
    }
    if (!listed_) RETURN_IF_ERROR(WriteDescription());
    report->wrote_description = !listed_;
    lock_.Clear();
    return {};
  }

 private:
  struct Given {
    std::string path;
    std::unique_ptr<FileDevice> device;
  };

  Result<void> LockDirectory();
  Result<void> OpenDevices();
  Result<void> FindRoot();
  bool AgreesWith(const StoreDescription& listed) const;
  Result<std::optional<size_t>> IndexOf(BlockDevice& device) const;
  Result<std::vector<size_t>> LostSuperblocks() const;
  Result<void> CheckSuperblocks() const;
  Result<void> OpenDevice(const std::string& path, bool own);
  std::optional<std::string> CatalogId() const;
  Result<void> RebuildSuperblock(size_t index);
  Result<void> WriteDescription();
  std::string In(const std::string& name) const { return directory_ + "/" + name; }

  const std::string directory_;
  const RecoverOptions& options_;
  StoreLock lock_;
  std::optional<StoreDescription> listed_;  // store.json, if it can be read
  std::optional<Error> newer_;              // store.json has a newer format: damage, or a newer program
  std::vector<Given> devices_;              // after FindRoot in the order of their indexes
  wal::Root root_;
  StoreDescription description_;
};

Result<void> Recovery::LockDirectory() {
  // Without --device a missing directory is a mistyped one.
  if (!options_.devices.empty() && mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) {
    return SystemError(directory_, "cannot be created");
  }
  ASSIGN_OR_RETURN(lock_, StoreLock::Acquire(directory_));
  lock_.Claim();
  return {};
}

Result<void> Recovery::OpenDevices() {
  const auto described = ReadStoreDescription(directory_);
  if (described) {
    listed_ = *described;
    FindMovedDevices(directory_, kDeviceLinks, &*listed_);
  } else if (described.error().code == ErrorCode::kVersion) {
    newer_ = described.error();
  } else if (described.error().code != ErrorCode::kCorrupt && described.error().code != ErrorCode::kNotFound) {
    return described.error();
  }
  std::vector<std::string> paths = options_.devices;
  if (paths.empty() && listed_) {
    for (const auto& device : listed_->devices) paths.push_back(DevicePath(directory_, device));
  }
  // A damaged store.json may name no device, or another one.
  const std::string pool = In(kPoolName);
  const auto exists = [](const std::string& path) { return access(path.c_str(), F_OK) == 0; };
  if (options_.devices.empty() && !std::all_of(paths.begin(), paths.end(), exists)) paths.clear();
  if (paths.empty() && exists(pool)) paths.push_back(pool);
  if (paths.empty()) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("{}: {}; name the devices of the store with --device", directory_,
                             described ? "its devices are missing" : ToString(described.error()))};
  }
  for (const std::string& path : paths) {
    RETURN_IF_ERROR(OpenDevice(path, options_.devices.empty() && path.starts_with(directory_ + "/")));
  }
  return {};
}

// `own`: a file in the store directory, which must not be a link of another user.
Result<void> Recovery::OpenDevice(const std::string& path, bool own) {
  if (own) {
    ASSIGN_OR_RETURN(const GuardedDirectory store, GuardedDirectory::Open(directory_));
    RETURN_IF_ERROR(store.CheckFile(path.substr(directory_.size() + 1), /*or_block_device=*/true));
  }
  const FileDevice::Options options{.follow_links = !own, .lock_wait = DeviceLockWait(lock_)};
  ASSIGN_OR_RETURN(auto device, FileDevice::Open(path, options));
  // A root of the log in a partition that begins at 1 MiB looks like one of the disk.
  const auto superblock = ReadSuperblock(*device);
  const auto partitions = PartitionsOf(path);
  if (!superblock && !partitions.empty()) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: has partitions, and no superblock of its own; name the "
                                                  "partition that holds the data: --device {}",
                                                  path, fmt::join(partitions, " or --device "))};
  }
  if (!superblock && superblock.error().code == ErrorCode::kInvalid) return superblock.error();
  devices_.push_back({path, std::move(device)});
  return {};
}

// The id of the store that the catalog belongs to, if it can be read.
std::optional<std::string> Recovery::CatalogId() const {
  const auto catalog = RocksKvStore::Open(In(kCatalogName), {.read_only = true});
  if (!catalog) return std::nullopt;
  return (*catalog)->Get(keys::Store(kStoreIdFact)).value_or(std::nullopt);
}

Result<void> Recovery::CheckSuperblocks() const {
  for (const Given& device : devices_) {
    const auto superblock = ReadSuperblock(*device.device);
    if (!superblock || superblock->store_id != root_.store_id || !superblock->read_only_features) continue;
    return Error{ErrorCode::kVersion, fmt::format("{}: a newer weightfs enabled features that this version cannot "
                                                  "write; use the newer version",
                                                  device.path)};
  }
  return {};
}

// Finds the root of the log, which has the description of the store, and orders the devices.
Result<void> Recovery::FindRoot() {
  std::vector<BlockDevice*> given;
  for (const Given& device : devices_) given.push_back(device.device.get());
  ASSIGN_OR_RETURN(auto root, wal::FindRoot(given, listed_ ? std::optional(listed_->id) : std::nullopt));
  if (!root && listed_) {
    ASSIGN_OR_RETURN(root, wal::FindRoot(given, std::nullopt));
  }
  if (!root) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("{}: no log of a catalog was found on {}; a store that was never mounted has none",
                             directory_, devices_.front().path)};
  }
  root_ = *root;
  // The devices of another store must not replace this one's catalog.
  const auto id = CatalogId();
  const bool foreign = listed_ && listed_->id != root_.store_id && !id;
  if (foreign || (id && *id != ToString(root_.store_id))) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: belongs to the store {}, and {} is another store; name its own "
                                                  "devices with --device",
                                                  devices_.front().path, ToString(root_.store_id), directory_)};
  }
  RETURN_IF_ERROR(CheckSuperblocks());
  ASSIGN_OR_RETURN(description_, ParseDescription("the description in the log", root_.description));
  if (listed_ && !AgreesWith(*listed_)) listed_.reset();
  std::vector<Given> ordered(description_.devices.size());
  for (Given& device : devices_) {
    ASSIGN_OR_RETURN(const auto index, IndexOf(*device.device));
    if (!index || *index >= ordered.size() || ordered[*index].device != nullptr) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("{}: not a device of the store {}, or given twice; name each device "
                               "of that store once",
                               device.path, ToString(description_.id))};
    }
    ordered[*index] = std::move(device);
  }
  for (size_t index = 0; index < ordered.size(); ++index) {
    if (ordered[index].device != nullptr) continue;
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}: the store has {} devices; device {} ({}) is missing; name all of "
                             "them with --device",
                             directory_, ordered.size(), index, description_.devices[index].path)};
  }
  devices_ = std::move(ordered);
  return {};
}

// True when store.json describes the same store; the paths of its devices may have changed.
bool Recovery::AgreesWith(const StoreDescription& listed) const {
  if (listed.id != description_.id || listed.devices.size() != description_.devices.size()) return false;
  for (size_t index = 0; index < listed.devices.size(); ++index) {
    const StoreDescription::Device &one = listed.devices[index], &other = description_.devices[index];
    if (one.id != other.id || one.size != other.size) return false;
    if (access(DevicePath(directory_, one).c_str(), F_OK) != 0) return false;
  }
  return true;
}

// The number of a device in its store, from its root or its superblock.
Result<std::optional<size_t>> Recovery::IndexOf(BlockDevice& device) const {
  BlockDevice* const one[] = {&device};
  const auto root = wal::FindRoot(one, root_.store_id);
  if (root && *root) return std::optional<size_t>((*root)->device.value);
  const auto superblock = ReadSuperblock(device);
  if (!superblock || superblock->store_id != root_.store_id) return std::optional<size_t>();
  return std::optional<size_t>(superblock->device_index.value);
}

Result<std::vector<size_t>> Recovery::LostSuperblocks() const {
  std::vector<size_t> lost;
  for (size_t index = 0; index < devices_.size(); ++index) {
    FileDevice& device = *devices_[index].device;
    const auto found = ReadSuperblock(device);
    if (found && found->store_id == root_.store_id) continue;
    const bool truncated = device.size() < description_.devices[index].size;
    if (!found && (found.error().code != ErrorCode::kCorrupt || truncated)) return found.error();
    lost.push_back(index);
  }
  return lost;
}

Result<void> Recovery::RebuildSuperblock(size_t index) {
  Superblock superblock;
  superblock.store_id = description_.id;
  superblock.device_id = description_.devices[index].id;
  superblock.device_index = description_.devices[index].index;
  superblock.device_count = static_cast<uint16_t>(devices_.size());
  superblock.device_size = description_.devices[index].size;
  superblock.clean = false;
  superblock.logged = root_.logged;
  return WriteSuperblock(*devices_[index].device, superblock);
}

Result<void> Recovery::WriteDescription() {
  for (size_t index = 0; index < devices_.size(); ++index) {
    const fs::path path = devices_[index].path;
    std::error_code error;
    if (!fs::equivalent(path, DevicePath(directory_, description_.devices[index]), error)) {
      description_.devices[index].path = fs::absolute(path).string();
    }
  }
  return WriteStoreDescription(directory_, description_);
}

}  // namespace

Result<StoreParts> RecoverStore(const StoreLocation& store, const RecoverOptions& options, RecoverReport* report) {
  const OpenOptions open{.repair = true, .progress = options.progress};
  const auto is_damage = [&](const Error& error) {
    return error.code == ErrorCode::kCorrupt || (error.code == ErrorCode::kNotFound && FindDamage(store.directory));
  };
  auto parts = options.devices.empty() ? OpenStoreParts(store, open) : Error{ErrorCode::kNotFound};
  if (!parts && (!options.devices.empty() || is_damage(parts.error()))) {
    RecoverOptions rebuild = options;
    for (size_t index = 0; store.described && index < store.described->devices.size(); ++index) {
      rebuild.devices.push_back(store.described->devices[index].path);
    }
    if (auto rebuilt = Recovery(store.directory, rebuild).Run(report); !rebuilt) {
      if (!options.devices.empty()) return rebuilt.error();
      return Error{parts.error().code, fmt::format("{}; {}", ToString(parts.error()), ToString(rebuilt.error()))};
    }
    parts = OpenStoreParts(store, open);
  }
  if (!parts) return parts;
  report->note = parts->note;
  report->lost = parts->lost;
  report->rebuilt = parts->rebuilt;
  return parts;
}

}  // namespace weightfs
