// SPDX-License-Identifier: Apache-2.0
#include "store/volume/recover_store.h"

#include <fcntl.h>
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
#include "common/log.h"
#include "common/shell_quote.h"
#include "engine/file_device.h"
#include "meta/keys.h"
#include "meta/rocks_kv_store.h"
#include "store/wal/logged_kv_store.h"
#include "store/volume/catalog_swap.h"
#include "store/volume/device_search.h"
#include "store/volume/disk_partition.h"
#include "store/volume/store_directory.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

// One run of recover. Run sets the members step by step.
class Recovery {
 public:
  Recovery(std::string directory, const RecoverOptions& options)
      : directory_(std::move(directory)), options_(options) {}

  Result<RecoverReport> Run() {
    RETURN_IF_ERROR(LockDirectory());
    RETURN_IF_ERROR(OpenDevices());
    RETURN_IF_ERROR(FindReplica());
    ASSIGN_OR_RETURN(const bool lost, CatalogIsLost());
    ASSIGN_OR_RETURN(const std::vector<size_t> superblocks, LostSuperblocks());
    if (newer_ && !superblocks.empty()) return *newer_;
    if (!lost && superblocks.empty() && listed_) {
      return Error{ErrorCode::kExists, fmt::format("{}: the catalog can be read and lacks nothing; recover replaces "
                                                   "only a damaged one ('weightfs verify {}' checks the store)",
                                                   directory_, ShellQuote(directory_))};
    }
    if (lost) RETURN_IF_ERROR(BuildCatalog());
    for (const size_t index : superblocks) RETURN_IF_ERROR(RebuildSuperblock(index));
    if (!listed_) RETURN_IF_ERROR(WriteDescription());
    if (lost) {
      ASSIGN_OR_RETURN(report_.kept, SwapCatalogs(directory_));
    }
    lock_.Clear();
    return std::move(report_);
  }

 private:
  struct Given {
    std::string path;
    std::unique_ptr<FileDevice> device;
  };

  Result<void> LockDirectory();
  Result<void> OpenDevices();
  Result<void> FindReplica();
  bool AgreesWith(const StoreDescription& listed) const;
  Result<std::optional<size_t>> IndexOf(BlockDevice& device) const;
  Result<bool> CatalogIsLost();
  Result<std::vector<size_t>> LostSuperblocks() const;
  Result<void> CheckSuperblocks() const;
  Result<void> OpenDevice(const std::string& path, bool own);
  std::optional<std::string> CatalogId() const;
  Result<void> BuildCatalog();
  Result<void> RebuildSuperblock(size_t index);
  Result<void> WriteDescription();
  std::string In(const std::string& name) const { return directory_ + "/" + name; }
  std::vector<BlockDevice*> Ordered() const;

  const std::string directory_;
  const RecoverOptions& options_;
  StoreLock lock_;
  std::optional<StoreDescription> listed_;  // store.json, if it can be read
  std::optional<Error> newer_;              // store.json has a newer format: damage, or a newer program
  std::vector<Given> devices_;              // after FindReplica in the order of their indexes
  wal::Root root_;
  StoreDescription description_;
  uint64_t known_ = 0;  // the version that the damaged catalog had, if it can be read
  RecoverReport report_;
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
  // A root of the replica in a partition that begins at 1 MiB looks like one of the disk.
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
  RocksKvStore::Options read_only;
  read_only.read_only = true;
  const auto catalog = RocksKvStore::Open(In(kCatalogName), read_only);
  if (!catalog) return std::nullopt;
  return (*catalog)->Get(keys::Store(kStoreIdFact)).value_or(std::nullopt);
}

// A replica is valid only if all programs that wrote to the store have kept it.
Result<void> Recovery::CheckSuperblocks() const {
  for (const Given& device : devices_) {
    const auto superblock = ReadSuperblock(*device.device);
    if (!superblock || superblock->store_id != root_.store_id) continue;
    if (superblock->read_only_features) {
      return Error{ErrorCode::kVersion, fmt::format("{}: a newer weightfs enabled features that this version cannot "
                                                    "write; use the newer version",
                                                    device.path)};
    }
    if (superblock->keeps_replica) continue;
    return Error{ErrorCode::kNotFound, fmt::format("{}: an older weightfs has written to the store, so the replica of "
                                                   "its catalog is out of date; restore {} from a backup",
                                                   device.path, In(kCatalogName))};
  }
  return {};
}

// Finds the replica, and orders the devices.
Result<void> Recovery::FindReplica() {
  std::vector<BlockDevice*> given;
  for (const Given& device : devices_) given.push_back(device.device.get());
  ASSIGN_OR_RETURN(auto root, wal::FindRoot(given, listed_ ? std::optional(listed_->id) : std::nullopt));
  if (!root && listed_) {
    ASSIGN_OR_RETURN(root, wal::FindRoot(given, std::nullopt));
  }
  if (!root) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("{}: no replica of the catalog was found on {}; a store that was never mounted by this "
                             "version of weightfs has none: restore {} from a backup",
                             directory_, devices_.front().path, In(kCatalogName))};
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
  ASSIGN_OR_RETURN(description_, ParseDescription("the description in the replica", root_.description));
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
  auto loaded = wal::LoadSegments(Ordered(), &root_);
  if (loaded || loaded.error().code != ErrorCode::kCorrupt) return loaded;
  return Error{ErrorCode::kCorrupt, fmt::format("{}: the lists of the replica's parts are damaged; restore {} from a "
                                                "backup",
                                                directory_, In(kCatalogName))};
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
  ASSIGN_OR_RETURN(const auto root, wal::FindRoot(one, root_.store_id));
  if (root) return std::optional<size_t>(root->device.value);
  const auto superblock = ReadSuperblock(device);
  if (!superblock || superblock->store_id != root_.store_id) return std::optional<size_t>();
  return std::optional<size_t>(superblock->device_index.value);
}

std::vector<BlockDevice*> Recovery::Ordered() const {
  std::vector<BlockDevice*> devices;
  for (const Given& device : devices_) devices.push_back(device.device.get());
  return devices;
}

// False when the catalog can be read completely and lacks nothing.
Result<bool> Recovery::CatalogIsLost() {
  if (root_.logged) return false;  // the next mount rebuilds it
  RocksKvStore::Options read_only;
  read_only.read_only = true;
  const auto catalog = RocksKvStore::Open(In(kCatalogName), read_only);
  if (!catalog) {
    // A lock, a full filesystem or missing permissions are no damage.
    const ErrorCode code = catalog.error().code;
    if (code == ErrorCode::kCorrupt || code == ErrorCode::kNotFound || code == ErrorCode::kIo) return true;
    return catalog.error();
  }
  const auto id = (*catalog)->Get(keys::Store(kStoreIdFact));
  const auto version = wal::ReadVersion(**catalog);
  if (version) known_ = version->sequence;
  if (!id || !*id || !IsReadable(**catalog)) return true;
  ASSIGN_OR_RETURN(const wal::Tail tail, wal::FindTail(Ordered(), root_, root_.checkpoint));
  return !version || ReplicaState{root_, root_.sequence, tail, *version}.CatalogIsBehind();
}

Result<void> Recovery::BuildCatalog() {
  ASSIGN_OR_RETURN(const auto catalog, CreateNewCatalog(directory_));
  ASSIGN_OR_RETURN(report_.restored, RestoreCatalog(Ordered(), root_, *catalog, known_, options_.progress));
  return {};
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
  RETURN_IF_ERROR(WriteSuperblock(*devices_[index].device, superblock));
  report_.superblocks.push_back(devices_[index].path);
  return {};
}

Result<void> Recovery::WriteDescription() {
  for (size_t index = 0; index < devices_.size(); ++index) {
    const fs::path path = devices_[index].path;
    std::error_code error;
    if (!fs::equivalent(path, DevicePath(directory_, description_.devices[index]), error)) {
      description_.devices[index].path = fs::absolute(path).string();
    }
  }
  RETURN_IF_ERROR(WriteStoreDescription(directory_, description_));
  report_.wrote_description = true;
  return {};
}

}  // namespace

Result<RecoverReport> RecoverStore(const std::string& directory, const RecoverOptions& options) {
  return Recovery(directory, options).Run();
}

}  // namespace weightfs
