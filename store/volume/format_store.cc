// SPDX-License-Identifier: Apache-2.0
// Format. Order of steps: check everything that may fail and reserve the space; only then remove old content; write
// store.json last, so that an incomplete store is not a store.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/guarded_directory.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/shell_quote.h"
#include "common/size_text.h"
#include "common/sync_directory.h"
#include "common/utc_time.h"
#include "meta/keys.h"
#include "meta/records.h"
#include "meta/rocks_kv_store.h"
#include "store/names/namespace.h"
#include "store/volume/device_contents.h"
#include "store/volume/disk_partition.h"
#include "store/volume/pool_fill.h"
#include "store/volume/store_directory.h"
#include "store/volume/store_session.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

// Runs the cleanup steps in reverse order unless everything succeeded.
class Rollback {
 public:
  ~Rollback() {
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) (*step)();
  }
  void Add(std::function<void()> step) { steps_.push_back(std::move(step)); }
  void Dismiss() { steps_.clear(); }

 private:
  std::vector<std::function<void()>> steps_;
};

// Removes empty parts and dots from the path, for readable messages. Keeps "link/..", because it refers to another
// directory than the one that contains the link.
fs::path WithoutDots(const fs::path& path) {
  fs::path parts;
  for (const fs::path& part : path) {
    if (!part.empty() && part != ".") parts /= part;
  }
  return parts.empty() ? path : parts;
}

void TryToRemove(const std::string& path) {
  if (const auto removed = RemoveTree(path); !removed) spdlog::warn("{}", removed.error().what);
}

// One run of format. Run sets the members step by step.
class Formatter {
 public:
  // `only_devices`: the directory is that of an index. `replaced`: the stores of the devices.
  Formatter(std::string directory, const FormatOptions& options, const Uuid& id, bool only_devices,
            const std::vector<Uuid>& replaced)
      : directory_(std::move(directory)),
        options_(options),
        only_devices_(only_devices),
        replaced_(replaced),
        description_{.id = id} {}

  Result<NewStore> Run() {
    RETURN_IF_ERROR(CheckOptions());
    RETURN_IF_ERROR(PrepareDirectory());
    if (options_.devices.empty()) {
      RETURN_IF_ERROR(ReservePool());
    } else {
      RETURN_IF_ERROR(OpenGivenDevices());
    }
    RETURN_IF_ERROR(RemoveOldStore());
    if (options_.partition) RETURN_IF_ERROR(PartitionDisks());
    RETURN_IF_ERROR(FillDevices());
    RETURN_IF_ERROR(WriteSuperblocks());
    RETURN_IF_ERROR(MakeCatalog());
    RETURN_IF_ERROR(WriteDescription());
    rollback_.Dismiss();
    lock_.Clear();
    return NewStore{directory_, description_, fill_};
  }

 private:
  Result<void> CheckOptions();
  Result<void> PrepareDirectory();
  Result<void> CheckNotDamaged() const;
  Result<void> CheckEntries();
  Result<void> ReservePool();
  Result<void> ResizePool(off_t size);
  Result<void> OpenGivenDevices();
  Result<void> MakeGivenFile(const std::string& path, const fs::path& whole);
  Result<void> CheckEmpty(const std::string& path);
  Result<void> AddTarget(const std::string& path, std::string recorded_path, ByteCount size);
  Result<void> RemoveOldStore();
  Result<void> PartitionDisks();
  Result<void> FillDevices();
  Result<void> WriteSuperblocks();
  Result<void> MakeCatalog();
  Result<void> WriteDescription();
  std::string In(const char* name) const { return directory_ + "/" + name; }
  bool Cancelled() const { return options_.cancel != nullptr && options_.cancel->load(); }
  bool Preallocates() const { return options_.fill != PoolFill::kNone; }

  const std::string directory_;
  const FormatOptions& options_;
  const bool only_devices_;
  const std::vector<Uuid>& replaced_;
  std::optional<GuardedDirectory> store_;  // set by PrepareDirectory; rollback_ uses it
  StoreLock lock_;
  Rollback rollback_;           // runs after the targets are closed and before the lock is released
  bool pool_is_given_ = false;  // given as a --device
  std::vector<std::unique_ptr<FileDevice>> devices_;
  std::vector<FillTarget> targets_;  // devices_
  StoreDescription description_;
  FillReport fill_;
};

Result<void> Formatter::CheckOptions() {
  const bool has_size = options_.size.value != 0;
  if (!options_.devices.empty() && has_size && !only_devices_) {
    return Error{ErrorCode::kInvalid, "--size is the size of a pool file; omit it with --device"};
  }
  if ((options_.devices.empty() || has_size) && options_.size.value < kMinimumDeviceSize) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("a store of {} is too small; --size must be at least {}", FormatSize(options_.size),
                             FormatSize(ByteCount{kMinimumDeviceSize}))};
  }
  if (options_.devices.size() > kMaximumDevices) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("{} devices are given; a store has at most {}", options_.devices.size(), kMaximumDevices)};
  }
  return {};
}

Result<void> Formatter::PrepareDirectory() {
  // The store holds the data of all users outside the permissions of the mount, so nobody else may access it.
  if (mkdir(directory_.c_str(), 0700) == 0) {
    rollback_.Add([this] { rmdir(directory_.c_str()); });
  } else if (errno != EEXIST) {
    Error error = SystemError(directory_, "cannot be created");
    if (error.code == ErrorCode::kNotFound) error.what += "; create the directory that holds it first";
    return error;
  }
  struct stat status = {};
  if (stat(directory_.c_str(), &status) != 0) return SystemError(directory_, "cannot be accessed");
  if (!S_ISDIR(status.st_mode)) {
    return Error{ErrorCode::kNotDirectory, fmt::format("{}: not a directory; a store is a directory that holds its "
                                                       "catalog (raw devices are given with --device)",
                                                       directory_)};
  }
  const bool had_lock = access(In(kLockName).c_str(), F_OK) == 0;
  RETURN_IF_ERROR(CheckNotDamaged());
  if (!options_.force) RETURN_IF_ERROR(CheckEntries());
  ASSIGN_OR_RETURN(store_, GuardedDirectory::Open(directory_));
  ASSIGN_OR_RETURN(lock_, StoreLock::Acquire(directory_));
  if (!had_lock) rollback_.Add([this] { unlink(In(kLockName).c_str()); });
  // A directory with the catalog's name that is not a catalog belongs to somebody else. Not even --force removes it.
  std::error_code error;
  const std::string catalog = In(kCatalogName);
  if (fs::exists(catalog, error) && !fs::is_empty(catalog, error) && !fs::exists(catalog + "/CURRENT", error)) {
    return Error{ErrorCode::kExists,
                 fmt::format("{}: exists and is not the catalog of a store; choose another directory", catalog)};
  }
  return {};
}

// Its data can be saved, so not even --force destroys it.
Result<void> Formatter::CheckNotDamaged() const {
  const auto damage = options_.discard_damaged ? std::nullopt : FindDamage(directory_);
  if (!damage) return {};
  return Error{ErrorCode::kExists, fmt::format("{}: holds a damaged store: {}; 'weightfs recover {}' rebuilds it, and "
                                               "--discard-damaged destroys it",
                                               directory_, *damage, ShellQuote(directory_))};
}

Result<void> Formatter::CheckEntries() {
  std::error_code error;
  for (fs::directory_iterator entry(directory_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name == "lost+found" || name == kLockName) continue;  // a format that was killed leaves the lock
    if (HoldsStore(directory_)) {
      return Error{ErrorCode::kExists,
                   fmt::format("{}: already holds a store; --force destroys it and creates a new one", directory_)};
    }
    return Error{ErrorCode::kExists, fmt::format("{}: not empty (it holds '{}'); choose an empty directory, or use "
                                                 "--force to create the store there",
                                                 directory_, name)};
  }
  if (error) {
    return Error{ErrorCode::kIo, fmt::format("{}: cannot be listed: {}", directory_, error.message())};
  }
  return {};
}

Result<void> Formatter::ReservePool() {
  const std::string path = In(kPoolName);
  const ByteCount size{RoundDown(options_.size.value, kBlockSize)};
  struct stat before = {};
  if (lstat(path.c_str(), &before) == 0) {
    RETURN_IF_ERROR(store_->CheckFile(kPoolName));
    RETURN_IF_ERROR(CheckEmpty(path));
  }
  bool made = false;
  RETURN_IF_ERROR(ReservePoolFile(*store_, kPoolName, size, Preallocates(), &made));
  if (made) {
    rollback_.Add([path] { TryToRemove(path); });
  } else {
    rollback_.Add([this, size = before.st_size] {
      if (auto cut = ResizePool(size); !cut.has_value()) spdlog::warn("{}", ToString(cut.error()));
    });
  }
  return AddTarget(path, kPoolName, size);
}

Result<void> Formatter::ResizePool(off_t size) {
  ASSIGN_OR_RETURN(const UniqueFd file, store_->OpenFile(kPoolName, O_RDWR));
  if (ftruncate(file.get(), size) == 0) return {};
  return SystemError(In(kPoolName), "cannot be resized");
}

Result<void> Formatter::CheckEmpty(const std::string& path) {
  const auto contents = DescribeContents(path);
  if (!contents && (options_.partition || !options_.force)) return contents.error();
  if (!contents || !*contents || (options_.partition && (*contents)->unused)) return {};
  const bool damaged = (*contents)->damaged;
  const bool in_partitions = options_.partition && (*contents)->partitions > 0;
  if (!in_partitions && (damaged ? options_.discard_damaged : options_.force)) return {};
  std::string advice = fmt::format("{} overwrites it", damaged ? "--discard-damaged" : "--force");
  if (in_partitions) advice = fmt::format("'sfdisk --delete {}' removes its partitions", ShellQuote(path));
  if ((*contents)->of_store) advice = "'weightfs recover' rebuilds a store that has lost its directory, and " + advice;
  return Error{ErrorCode::kExists, fmt::format("{}: already holds {}; {}", path, (*contents)->words, advice)};
}

// Makes a file of --size that does not exist or is empty.
Result<void> Formatter::MakeGivenFile(const std::string& path, const fs::path& whole) {
  struct stat status = {};
  const bool exists = stat(path.c_str(), &status) == 0;
  if (exists && (!S_ISREG(status.st_mode) || status.st_size > 0)) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}: exists; --size is for files that format makes, so omit it", path)};
  }
  ASSIGN_OR_RETURN(const GuardedDirectory folder, GuardedDirectory::Open(whole.parent_path().string()));
  bool made = false;
  const ByteCount size{RoundDown(options_.size.value, kBlockSize)};
  RETURN_IF_ERROR(ReservePoolFile(folder, whole.filename().string(), size, Preallocates(), &made));
  if (made) rollback_.Add([path = whole.string()] { TryToRemove(path); });
  return {};
}

Result<void> Formatter::OpenGivenDevices() {
  std::set<std::pair<dev_t, uint64_t>> seen;
  for (const std::string& given : options_.devices) {
    std::error_code code;
    const fs::path whole = fs::absolute(given, code);
    if (code) return Error{ErrorCode::kInvalid, fmt::format("'{}' is no path of a device: {}", given, code.message())};
    if (!IsUtf8(whole.string()) && (!only_devices_ || options_.devices.size() > 1)) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("{}: its path is not UTF-8, so the description of the store cannot name it; rename it, "
                               "or name a link to it",
                               Printable(given))};
    }
    const bool makes = options_.size.value != 0 && !(IdentityOf(given) && seen.contains(*IdentityOf(given)));
    if (makes) RETURN_IF_ERROR(MakeGivenFile(given, whole));
    struct stat status = {};
    if (stat(given.c_str(), &status) != 0) {
      Error error = SystemError(given, "cannot be accessed");
      error.what += "; check the path of the device";
      return error;
    }
    const bool block = S_ISBLK(status.st_mode);
    const auto identity = IdentityOf(given);
    if (!identity) {
      return Error{ErrorCode::kInvalid,
                   given + ": neither a block device nor a regular file; name a disk, a partition or a file"};
    }
    // Two names of one device would be two devices on the same bytes.
    if (!seen.insert(*identity).second) {
      return Error{ErrorCode::kInvalid, fmt::format("{}: given twice; name each device once", given)};
    }
    if (options_.partition) RETURN_IF_ERROR(CheckIsDisk(given));
    RETURN_IF_ERROR(CheckEmpty(given));
    pool_is_given_ = pool_is_given_ || fs::equivalent(given, In(kPoolName), code);
    const std::string path = WithoutDots(whole).string();
    if (!block && Preallocates()) {
      RETURN_IF_ERROR(ReserveGivenFile(path, ByteCount{static_cast<uint64_t>(status.st_size)}));
    }
    RETURN_IF_ERROR(AddTarget(path, path, ByteCount{}));
  }
  // Last, because a kernel that cannot read the table of a disk forgets its partitions here.
  if (!options_.partition) return {};
  for (const auto& device : devices_) RETURN_IF_ERROR(CheckPartitionable(*device));
  return {};
}

// Opens the device exclusively; `size` 0: the whole device.
Result<void> Formatter::AddTarget(const std::string& path, std::string recorded_path, ByteCount size) {
  ASSIGN_OR_RETURN(auto device, FileDevice::Open(path, {.lock_wait = DeviceLockWait(lock_)}));
  if (size.value == 0) size = device->size();
  // The same space is lost at the end of the disk.
  if (options_.partition) size.value -= std::min(size.value, 2 * kPartitionOffset);
  if (size.value < kMinimumDeviceSize) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: {} is too small; a device has at least {}", path,
                                                  FormatSize(size), FormatSize(ByteCount{kMinimumDeviceSize}))};
  }
  const bool leave = options_.fill == PoolFill::kAuto && device->is_block_device();
  description_.devices.push_back(
      {DeviceId{static_cast<uint16_t>(targets_.size())}, NewUuid(), std::move(recorded_path), size});
  targets_.push_back({device.get(), size, leave ? PoolFill::kNone : options_.fill});
  devices_.push_back(std::move(device));
  return {};
}

// The point of no return. Removes the description first: until format completes, the directory is not a store.
Result<void> Formatter::RemoveOldStore() {
  if (Cancelled()) return Error{ErrorCode::kShutdown, "format was interrupted; nothing was changed"};
  lock_.Claim();
  if (unlink(In(kDescriptionName).c_str()) != 0 && errno != ENOENT) {
    return SystemError(In(kDescriptionName), "cannot be removed");
  }
  RETURN_IF_ERROR(SyncDirectory(directory_));
  // Not that of this directory, which has the lock.
  for (const Uuid& id : replaced_) RemoveIndex(id);
  RETURN_IF_ERROR(RemoveTree(In(kCatalogName)));
  // The pool file of an earlier store may be longer than this one's, or no longer needed.
  const std::string pool = In(kPoolName);
  if (options_.devices.empty()) {
    RETURN_IF_ERROR(ResizePool(static_cast<off_t>(targets_[0].size.value)));
    store_->RestrictFile(kPoolName);
  } else if (!pool_is_given_ && unlink(pool.c_str()) != 0 && errno != ENOENT) {
    return SystemError(pool, "cannot be removed");
  }
  if (unlink(In(kLogName).c_str()) != 0 && errno != ENOENT) {
    return SystemError(In(kLogName), "cannot be removed");
  }
  return {};
}

// From here on the targets are the partitions instead of the disks.
Result<void> Formatter::PartitionDisks() {
  for (size_t index = 0; index < targets_.size(); ++index) {
    std::unique_ptr<FileDevice>& device = devices_[index];
    StoreDescription::Device& described = description_.devices[index];
    const std::string name = PartitionName(description_.id, index);
    ASSIGN_OR_RETURN(device, MakePartition(std::move(device), described.id, name));
    targets_[index].device = device.get();
    targets_[index].size = described.size = device->size();
    described.path = device->path();
  }
  return {};
}

Result<void> Formatter::FillDevices() {
  ASSIGN_OR_RETURN(fill_, FillPool(targets_, {.progress = options_.progress, .cancel = options_.cancel}));
  return {};
}

Result<void> Formatter::WriteSuperblocks() {
  const int64_t now = UtcNowNs();
  description_.created = FormatUtc(now);
  for (size_t index = 0; index < targets_.size(); ++index) {
    Superblock superblock;
    superblock.store_id = description_.id;
    superblock.device_id = description_.devices[index].id;
    superblock.device_index = description_.devices[index].index;
    superblock.device_count = static_cast<uint16_t>(targets_.size());
    superblock.device_size = targets_[index].size;
    superblock.created_ns = now;
    RETURN_IF_ERROR(WriteSuperblock(*targets_[index].device, superblock));
  }
  return {};
}

Result<void> Formatter::MakeCatalog() {
  const std::string path = In(kCatalogName);
  rollback_.Add([path] { TryToRemove(path); });
  ASSIGN_OR_RETURN(const auto catalog, RocksKvStore::Open(path, {.create = true}));
  RETURN_IF_ERROR(Namespace::Initialize(*catalog, options_.root_uid, options_.root_gid));
  KvBatch batch;
  batch.Put(keys::Store(kStoreIdFact), ToString(description_.id));
  RETURN_IF_ERROR(catalog->Write(std::move(batch)));
  return catalog->Sync();
}

Result<void> Formatter::WriteDescription() {
  rollback_.Add([this] { unlink(In(kDescriptionName).c_str()); });
  return WriteStoreDescription(directory_, description_);
}

// The ids of the stores that devices belong to. Without a log on the devices, an index may be the only catalog.
std::vector<Uuid> StoresOn(const std::vector<std::string>& devices) {
  std::vector<Uuid> stores;
  for (const std::string& path : devices) {
    const auto device = IdentityOf(path) ? OpenToExamine(path) : Error{ErrorCode::kNotFound};
    const auto superblock = device ? ReadSuperblock(**device) : Error{ErrorCode::kNotFound};
    if (superblock && superblock->logged) stores.push_back(superblock->store_id);
  }
  return stores;
}

}  // namespace

Result<NewStore> FormatStore(const std::string& directory, const FormatOptions& options) {
  const Uuid id = NewUuid();
  const std::vector<Uuid> replaced = StoresOn(options.devices);
  if (!directory.empty()) return Formatter(WithoutDots(directory).string(), options, id, false, replaced).Run();
  StoreLocation location(options.index);
  location.described = StoreDescription{.id = id};
  if (options.index.empty()) {
    ASSIGN_OR_RETURN(location.directory, FindIndex(id));
  }
  std::vector<std::string> named = options.devices;
  named.push_back(location.directory);
  for (const std::string& path : named) {
    std::error_code error;
    RETURN_IF_ERROR(CheckNoComma(path));
    RETURN_IF_ERROR(CheckNoComma(fs::weakly_canonical(path, error).string()));
  }
  RETURN_IF_ERROR(PrepareIndex(location, replaced));
  auto made = Formatter(location.directory, options, id, true, replaced).Run();
  if (!made) {
    rmdir(location.directory.c_str());  // unless there is something else in it
    return made;
  }
  std::vector<std::string> paths;
  for (const auto& device : made->description.devices) paths.push_back(device.path);
  const std::string name = fmt::format("{}", fmt::join(paths, ","));
  ASSIGN_OR_RETURN(made->location, FindStore(name, {.index = location.directory}));
  RETURN_IF_ERROR(WriteLog(made->location));
  return made;
}

}  // namespace weightfs
