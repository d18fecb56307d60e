// SPDX-License-Identifier: Apache-2.0
#include "store/volume/store_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "common/guarded_directory.h"
#include "common/json.h"
#include "common/log.h"
#include "common/shell_quote.h"
#include "common/sync_directory.h"
#include "store/volume/device_contents.h"
#include "store/volume/device_search.h"
#include "store/volume/open_catalog.h"

namespace weightfs {
namespace {

using Json = nlohmann::json;

// Bounds the memory for a damaged file.
constexpr size_t kMaximumDescriptionBytes = kMiB;

Error Damaged(const std::string& path, std::string_view what) {
  return {ErrorCode::kCorrupt, fmt::format("{}: damaged: {}; restore it from a copy of the store", path, what)};
}

bool HasCatalog(const std::string& directory) {
  return access(fmt::format("{}/{}/CURRENT", directory, kCatalogName).c_str(), F_OK) == 0;
}

bool HasPool(const std::string& directory) {
  const auto contents = DescribeContents(directory + "/" + kPoolName);
  return contents && *contents && (*contents)->of_store;
}

Result<std::string> ReadDescriptionFile(const std::string& directory, const std::string& path) {
  const auto no_store = [&] {
    const bool pool = HasPool(directory);
    if (!pool && !HasCatalog(directory)) {
      return Error{ErrorCode::kNotFound, fmt::format("{}: not a weightfs store (it has no {}); check the path of the "
                                                     "store",
                                                     directory, kDescriptionName)};
    }
    return Error{ErrorCode::kNotFound,
                 fmt::format("{}: a weightfs store without its {}; rebuild it with: weightfs recover {}{}", directory,
                             kDescriptionName, ShellQuote(directory), pool ? "" : " --device PATH")};
  };
  const auto store = GuardedDirectory::Open(directory);
  if (!store.has_value() && store.error().code == ErrorCode::kNotDirectory) return no_store();
  if (!store.has_value()) {
    return Error{store.error().code, fmt::format("{}; check the path of the store", store.error().what)};
  }
  auto text = store->ReadFile(kDescriptionName, kMaximumDescriptionBytes + 1);
  if (!text.has_value() && text.error().code == ErrorCode::kNotFound) return no_store();
  if (!text.has_value()) return text.error();
  if (text->size() > kMaximumDescriptionBytes) return Damaged(path, "it is too long");
  return text;
}

std::optional<Uuid> UuidIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return std::nullopt;
  return ParseUuid(found->get_ref<const std::string&>());
}

std::optional<uint64_t> NumberIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<uint64_t>();
}

Result<StoreDescription::Device> ParseDevice(const std::string& path, const Json& entry, size_t index) {
  if (!entry.is_object()) return Damaged(path, fmt::format("device {} is not an object", index));
  const auto id = UuidIn(entry, "id");
  const auto number = NumberIn(entry, "index"), size = NumberIn(entry, "size");
  const auto where = entry.find("path");
  if (!id || !number || !size || where == entry.end() || !where->is_string()) {
    return Damaged(path, fmt::format("device {} lacks an id, index, size or path", index));
  }
  if (*number != index) return Damaged(path, fmt::format("device {} is listed at index {}", *number, index));
  auto name = where->get<std::string>();
  // Open would take the part before a NUL.
  if (name.empty() || name.find('\0') != std::string::npos) {
    return Damaged(path, fmt::format("device {} has an impossible path", index));
  }
  return StoreDescription::Device{DeviceId{static_cast<uint16_t>(index)}, *id, std::move(name), ByteCount{*size}};
}

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

bool NeedsGuard(const std::string& directory, const StoreDescription& description) {
  const auto& devices = description.devices;
  return MayLoseLocks(directory) ||
         std::any_of(devices.begin(), devices.end(), [&](const StoreDescription::Device& device) {
           return MayLoseLocks(DevicePath(directory, device));
         });
}

std::function<bool()> MayWrite(const StoreParts& parts) {
  if (parts.guard == nullptr) return {};
  return [guard = parts.guard.get()] { return guard->MayWrite(); };
}

Result<void> OpenDevices(const std::string& directory, const OpenOptions& options, StoreParts* parts) {
  ASSIGN_OR_RETURN(const GuardedDirectory store, GuardedDirectory::Open(directory));
  FileDevice::Options device_options{.queue_depth = options.queue_depth,
                                     .read_only = options.read_only,
                                     .exclusive = options.lock,
                                     .lock_wait = DeviceLockWait(parts->lock),
                                     .may_write = MayWrite(*parts)};
  for (size_t index = 0; index < parts->description.devices.size(); ++index) {
    const StoreDescription::Device& listed = parts->description.devices[index];
    const std::string path = DevicePath(directory, listed);
    device_options.follow_links = listed.path.starts_with('/');
    if (!device_options.follow_links) RETURN_IF_ERROR(CheckOwnDevice(store, listed.path));
    ASSIGN_OR_RETURN(auto device, FileDevice::Open(path, device_options));
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

std::optional<std::string> FindDamage(const std::string& directory) {
  const auto description = ReadStoreDescription(directory);
  const bool catalog = HasCatalog(directory);
  if (description) return catalog ? std::nullopt : std::optional(fmt::format("its {} is missing", kCatalogName));
  if (description.error().code == ErrorCode::kVersion) return std::nullopt;
  const bool damaged = description.error().code == ErrorCode::kCorrupt;
  if (!damaged && !catalog && !HasPool(directory)) return std::nullopt;
  return fmt::format("its {} is {}", kDescriptionName, damaged ? "damaged" : "missing");
}

bool HoldsStore(const std::string& directory) {
  return access((directory + "/" + kDescriptionName).c_str(), F_OK) == 0;
}

Result<UniqueFd> OpenLog(const std::string& directory) {
  ASSIGN_OR_RETURN(const GuardedDirectory store, GuardedDirectory::Open(directory));
  return store.OpenFile(kLogName, O_WRONLY | O_APPEND | O_CREAT);
}

std::string DevicePath(const std::string& directory, const StoreDescription::Device& device) {
  return device.path.starts_with('/') ? device.path : directory + "/" + device.path;
}

Result<StoreDescription> ReadStoreDescription(const std::string& directory) {
  const std::string path = directory + "/" + kDescriptionName;
  ASSIGN_OR_RETURN(const std::string text, ReadDescriptionFile(directory, path));
  return ParseDescription(path, text);
}

Result<StoreDescription> ParseDescription(const std::string& path, const std::string& text) {
  const auto parsed = ParseJson(text, {.bytes = kMaximumDescriptionBytes});
  if (!parsed) return Damaged(path, parsed.error().what);
  const Json& root = *parsed;
  if (!root.is_object()) return Damaged(path, "it is not a JSON object");
  const auto format = NumberIn(root, "format");
  if (!format || *format == 0) return Damaged(path, "it has no format number");
  if (*format > kFormatVersion) {
    return Error{ErrorCode::kVersion, fmt::format("{}: format {} is newer than this program's {}; use a newer weightfs",
                                                  path, *format, kFormatVersion)};
  }
  StoreDescription description;
  description.format = static_cast<uint32_t>(*format);
  const auto id = UuidIn(root, "id");
  const auto devices = root.find("devices");
  if (!id) return Damaged(path, "it has no valid id");
  if (devices == root.end() || !devices->is_array() || devices->empty()) return Damaged(path, "it lists no devices");
  if (devices->size() > kMaximumDevices) {
    return Damaged(path, fmt::format("it lists {} devices; a store has at most {}", devices->size(), kMaximumDevices));
  }
  description.id = *id;
  if (const auto created = root.find("created"); created != root.end() && created->is_string()) {
    description.created = created->get<std::string>();
  }
  for (const Json& entry : *devices) {
    ASSIGN_OR_RETURN(auto device, ParseDevice(path, entry, description.devices.size()));
    description.devices.push_back(std::move(device));
  }
  return description;
}

std::string ToJson(const StoreDescription& description) {
  using Ordered = nlohmann::ordered_json;
  Ordered root = {{"format", description.format},
                  {"id", ToString(description.id)},
                  {"devices", Ordered::array()},
                  {"created", description.created}};
  for (const auto& device : description.devices) {
    root["devices"].push_back({{"index", device.index.value},
                               {"id", ToString(device.id)},
                               {"path", device.path},
                               {"size", device.size.value}});
  }
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<void> WriteStoreDescription(const std::string& directory, const StoreDescription& description) {
  ASSIGN_OR_RETURN(const GuardedDirectory store, GuardedDirectory::Open(directory));
  const std::string text = ToJson(description);
  const std::string path = store.PathOf(kDescriptionName), name = std::string(kDescriptionName) + ".new";
  const std::string temporary = store.PathOf(name);
  const auto write_file = [&]() -> Result<void> {
    // Left by an earlier call that was killed.
    if (unlink(temporary.c_str()) != 0 && errno != ENOENT) return SystemError(temporary, "cannot be removed");
    ASSIGN_OR_RETURN(const UniqueFd file, store.OpenFile(name, O_WRONLY | O_CREAT));
    errno = ENOSPC;  // for a short write
    if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) || fsync(file.get()) != 0) {
      return SystemError(temporary, "cannot be written");
    }
    if (rename(temporary.c_str(), path.c_str()) != 0) return SystemError(path, "cannot be renamed");
    return {};
  };
  if (auto written = write_file(); !written.has_value()) {
    unlink(temporary.c_str());
    return written;
  }
  return SyncDirectory(directory);
}

Result<StoreParts> OpenStoreParts(const std::string& directory, const OpenOptions& options) {
  OpenOptions effective = options;
  if (!options.lock) effective.read_only = true;
  StoreParts parts;
  ASSIGN_OR_RETURN(parts.description, ReadStoreDescription(directory));
  if (options.lock) {
    ASSIGN_OR_RETURN(parts.lock, StoreLock::Acquire(directory));
    parts.lock.Claim();  // claim now: if this process is killed during the open, the next one waits for the devices
  }
  const bool moved = FindMovedDevices(directory, options.device_links, &parts.description);
  if (options.lock && !effective.read_only && (options.guard || NeedsGuard(directory, parts.description))) {
    parts.guard = std::make_unique<StoreGuard>(directory);
  }
  // Open the devices first: opening the catalog may write to it, and a wrong device must not change anything.
  RETURN_IF_ERROR(OpenDevices(directory, effective, &parts));
  RETURN_IF_ERROR(OpenCatalog(directory, effective, &parts));
  if (!effective.read_only) {
    if (moved) RETURN_IF_ERROR(WriteStoreDescription(directory, parts.description));
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
