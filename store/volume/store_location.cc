// SPDX-License-Identifier: Apache-2.0
#include "store/volume/store_location.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "common/guarded_directory.h"
#include "common/log.h"
#include "common/shell_quote.h"
#include "common/utc_time.h"
#include "store/volume/device_contents.h"
#include "store/volume/disk_partition.h"
#include "store/volume/store_directory.h"
#include "store/wal/wal_reader.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCacheName = "weightfs";  // of the directory in that of caches
constexpr std::string_view kIndexWord = "index=";
constexpr size_t kLongestName = 2048;  // the kernel takes less than a page as the source of a mount

// A device that the argument names, and what its superblock says.
struct NamedDevice {
  std::string path;
  StoreDescription::Device device;
  Uuid store{};
  size_t count = 0;
  std::string created;
};

struct Words {
  std::vector<std::string> paths;
  std::string index;
};

Words Split(const std::string& argument) {
  Words words;
  for (size_t begin = 0; begin <= argument.size();) {
    const size_t end = std::min(argument.find(',', begin), argument.size());
    std::string word = argument.substr(begin, end - begin);
    if (word.starts_with(kIndexWord)) {
      words.index = word.substr(kIndexWord.size());
    } else if (!word.empty()) {
      words.paths.push_back(std::move(word));
    }
    begin = end + 1;
  }
  return words;
}

// The directory of caches of this user.
Result<std::string> CacheDirectory() {
  if (geteuid() == 0) return fs::path(kRootIndexes).parent_path().string();
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache);
  const char* home = std::getenv("HOME");
  const passwd* const user = home == nullptr ? getpwuid(geteuid()) : nullptr;
  if (user != nullptr) home = user->pw_dir;
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache";
  return Error{ErrorCode::kNotFound, "no directory for the index of the store: neither XDG_CACHE_HOME nor HOME is set; "
                                     "name one with index=DIRECTORY"};
}

// Another user must not be able to put a directory or a link there.
Result<void> CheckTrusted(const std::string& cache, const Uuid& id) {
  auto directory = GuardedDirectory::Open(cache);
  for (const std::string& name : {std::string(kCacheName), ToString(id)}) {
    if (directory) directory = directory->OpenDirectory(name);
  }
  if (directory || directory.error().code != ErrorCode::kPermission) return {};
  return Error{ErrorCode::kPermission, directory.error().what + ", or name another directory with index="};
}

// What a device without a superblock is, and the next step.
Error NoStore(const std::string& path, const Error& superblock) {
  const auto contents = DescribeContents(path);
  if (!contents) return contents.error();
  if (*contents && (*contents)->of_store && (*contents)->partitions == 0) return superblock;
  const auto partitions = PartitionsOf(path);
  if (!partitions.empty()) {
    return {ErrorCode::kNotFound, fmt::format("{}: has partitions, and no store of its own; name the partition of the "
                                              "store: {}",
                                              path, fmt::join(partitions, " or "))};
  }
  if (*contents) {
    return {ErrorCode::kNotFound,
            fmt::format("{}: not a weightfs store: it holds {}; check the path", path, (*contents)->words)};
  }
  return {ErrorCode::kNotFound, fmt::format("{}: not a weightfs store: it is empty; check the path, or make a store: "
                                            "weightfs format --device {}",
                                            path, ShellQuote(path))};
}

// What the log of a device says whose superblock is damaged; nullopt: there is no log.
Result<std::optional<NamedDevice>> AskLog(FileDevice& device, const std::string& path) {
  BlockDevice* const one[] = {&device};
  ASSIGN_OR_RETURN(const auto root, wal::FindRoot(one, std::nullopt));
  if (!root) return std::optional<NamedDevice>();
  ASSIGN_OR_RETURN(const auto description, ParseDescription("the description in the log", root->description));
  if (description.id != root->store_id || root->device.value >= description.devices.size()) {
    return std::optional<NamedDevice>();
  }
  return std::optional(NamedDevice{path, description.devices[root->device.value], description.id,
                                   description.devices.size(), description.created});
}

Result<NamedDevice> ReadDevice(const std::string& path, bool damaged_too) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) {
    return Error{errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kAccess,
                 fmt::format("{}: {}; check the path of the device", path, std::strerror(errno))};
  }
  if (!S_ISBLK(status.st_mode) && !S_ISREG(status.st_mode)) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: neither a block device nor a pool file; name a store directory, "
                                                  "or the devices of a store",
                                                  path)};
  }
  ASSIGN_OR_RETURN(const auto device, OpenToExamine(path));
  const auto superblock = ReadSuperblock(*device);
  if (!superblock && superblock.error().code == ErrorCode::kCorrupt && damaged_too) {
    ASSIGN_OR_RETURN(auto logged, AskLog(*device, path));
    if (logged) return *std::move(logged);
  }
  if (!superblock && superblock.error().code == ErrorCode::kCorrupt) return NoStore(path, superblock.error());
  if (!superblock) return superblock.error();
  return NamedDevice{path,
                     {superblock->device_index, superblock->device_id, fs::absolute(path).string(),
                      superblock->device_size},
                     superblock->store_id,
                     superblock->device_count,
                     FormatUtc(superblock->created_ns)};
}

Result<void> CheckOneStore(const std::vector<NamedDevice>& named) {
  for (size_t index = 1; index < named.size(); ++index) {
    const NamedDevice& device = named[index];
    if (device.store != named[0].store || device.count != named[0].count) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("{}: belongs to the store {}, and {} to {}; name the devices of one store", device.path,
                               ToString(device.store), named[0].path, ToString(named[0].store))};
    }
    for (size_t earlier = 0; earlier < index; ++earlier) {
      if (named[earlier].device.index != device.device.index) continue;
      const bool same = IdentityOf(device.path) == IdentityOf(named[earlier].path);
      return Error{ErrorCode::kInvalid,
                   same ? fmt::format("{}: given twice; name each device once", device.path)
                        : fmt::format("{}: has the same superblock as {}: one is a copy; name only the right one",
                                      device.path, named[earlier].path)};
    }
  }
  return {};
}

// With a copy of a device, the store had the others last where those of the original are.
Result<void> CheckNoCopy(const NamedDevice& one, const StoreDescription& last, const std::string& directory,
                         const FindOptions& options) {
  const StoreDescription::Device& listed = last.devices[one.device.index.value];
  const std::string path = listed.path.empty() ? "" : DevicePath(directory, listed);
  const auto identity = IdentityOf(path);
  if (!identity || identity == IdentityOf(one.path)) return {};
  const auto other = ReadDevice(path, options.damaged_too);
  if (!other || other->store != one.store || other->device.index != one.device.index) return {};
  return Error{ErrorCode::kInvalid,
               fmt::format("{}: has the same superblock as {}: one is a copy; name all {} devices of the store that "
                           "you mean, with commas between them",
                           one.path, path, last.devices.size())};
}

// Finds the devices that are not named: where the store had them last, and by their superblocks.
Result<void> FindOthers(const std::vector<NamedDevice>& named, const std::string& directory,
                        const FindOptions& options, StoreDescription* description) {
  auto last = ReadStoreDescription(directory);
  if (!last || last->id != description->id || last->devices.size() != description->devices.size()) {
    ASSIGN_OR_RETURN(const auto device, OpenToExamine(named[0].path));
    BlockDevice* const one[] = {device.get()};
    const auto root = wal::FindRoot(one, description->id);
    last = root && *root ? ParseDescription("the description in the log", (*root)->description)
                         : Error{ErrorCode::kNotFound};
  }
  const auto is_named = [&](size_t index) {
    return std::ranges::any_of(named, [&](const NamedDevice& one) { return one.device.index.value == index; });
  };
  if (last && last->devices.size() == description->devices.size()) {
    for (const NamedDevice& one : named) RETURN_IF_ERROR(CheckNoCopy(one, *last, directory, options));
    StoreDescription sought = *last;
    for (const NamedDevice& one : named) sought.devices[one.device.index.value] = one.device;
    FindMovedDevices(directory, options.device_links, &sought);
    description->devices = sought.devices;
  }
  for (size_t index = 0; index < description->devices.size(); ++index) {
    StoreDescription::Device& device = description->devices[index];
    if (is_named(index)) continue;
    device.path = device.path.empty() ? "" : DevicePath(directory, device);
    const auto found = device.path.empty() ? Error{ErrorCode::kNotFound} : ReadDevice(device.path, options.damaged_too);
    if (found && found->store == description->id && found->device.index.value == index) continue;
    return Error{ErrorCode::kNotFound,
                 fmt::format("{}: the store has {} devices; device {}{} is missing; connect it, or name it, too: "
                             "{},PATH",
                             named[0].path, description->devices.size(), index,
                             device.path.empty() ? "" : fmt::format(" (last {})", device.path), named[0].path)};
  }
  return {};
}

Result<StoreDescription> DescribeDevices(const std::vector<NamedDevice>& named, const std::string& directory,
                                         const FindOptions& options) {
  RETURN_IF_ERROR(CheckOneStore(named));
  StoreDescription description;
  description.id = named[0].store;
  description.created = named[0].created;
  description.devices.resize(named[0].count);
  for (const NamedDevice& one : named) {
    description.devices[one.device.index.value] = one.device;
    description.devices[one.device.index.value].path = fs::absolute(one.path).string();
  }
  if (named.size() < description.devices.size()) {
    RETURN_IF_ERROR(FindOthers(named, directory, options, &description));
  }
  return description;
}

Result<std::string> NameOf(const std::vector<NamedDevice>& named, const std::string& directory) {
  RETURN_IF_ERROR(CheckNoComma(directory));
  std::vector<std::string> words;
  for (const NamedDevice& one : named) {
    std::error_code error;
    const fs::path real = fs::canonical(one.path, error);
    words.push_back(error ? fs::absolute(one.path).string() : real.string());
    RETURN_IF_ERROR(CheckNoComma(words.back()));
  }
  // What is said to anybody must not depend on who reads it.
  const std::string usual = fmt::format("{}/{}", kRootIndexes, ToString(named[0].store));
  if (directory != usual) words.push_back(std::string(kIndexWord) + directory);
  std::string name = fmt::format("{}", fmt::join(words, ","));
  // One device leads to the others.
  if (name.size() > kLongestName) words.erase(words.begin() + 1, words.begin() + static_cast<long>(named.size()));
  return name.size() > kLongestName ? fmt::format("{}", fmt::join(words, ",")) : name;
}

// A directory of that name without a catalog in it belongs to somebody else, and a rebuilt catalog would replace it.
bool MayBeCatalog(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error) && (fs::is_empty(path, error) || fs::exists(path / "CURRENT", error));
}

Error CannotMake(const std::string& directory) {
  Error error = SystemError(directory, "cannot be made");
  error.what += "; name another directory for the index";
  return error;
}

// Of a directory without a readable description: nothing but what an interrupted mount has left may be there.
Result<void> CheckEntries(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name == "lost+found" || name == kLockName || name == kLogName || name == kNewCatalogName ||
                      name == kReplacedCatalogName || name.starts_with(kOldCatalogs) ||
                      name.starts_with(kDescriptionName) ||
                      (name == kCatalogName && MayBeCatalog(entry.path()));
    if (ours) continue;
    return Error{ErrorCode::kExists,
                 fmt::format("{}: not empty (it holds '{}'); name an empty directory for the index", directory, name)};
  }
  if (error) return Error{ErrorCode::kIo, fmt::format("{}: cannot be listed: {}; name another directory for the index",
                                                       directory, error.message())};
  return {};
}

}  // namespace

Result<void> CheckNoComma(const std::string& path) {
  if (path.find(',') == std::string::npos) return {};
  return Error{ErrorCode::kInvalid,
               fmt::format("{}: has a comma, which separates the devices of a store; rename it, or name another path",
                           path)};
}

Result<std::string> FindIndex(const Uuid& id) {
  ASSIGN_OR_RETURN(const std::string cache, CacheDirectory());
  RETURN_IF_ERROR(CheckTrusted(cache, id));
  return fmt::format("{}/{}/{}", cache, kCacheName, ToString(id));
}

Result<StoreLocation> FindStore(const std::string& argument, const FindOptions& options) {
  struct stat status = {};
  const bool exists = stat(argument.c_str(), &status) == 0;
  Words words = exists ? Words{{argument}, {}} : Split(argument);
  if (!options.index.empty()) words.index = options.index;
  if (exists ? S_ISDIR(status.st_mode) : words.paths.size() < 2 && words.index.empty()) {
    if (words.index.empty()) return StoreLocation(argument);
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}: has its own index; index= is for a store that is named by its devices", argument)};
  }
  if (words.paths.empty()) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: names no device; write DEVICE,index=DIRECTORY", argument)};
  }
  std::vector<NamedDevice> named;
  for (const std::string& path : words.paths) {
    ASSIGN_OR_RETURN(named.emplace_back(), ReadDevice(path, options.damaged_too));
  }
  StoreLocation location;
  if (words.index.empty()) {
    ASSIGN_OR_RETURN(location.directory, FindIndex(named[0].store));
  } else {
    std::error_code error;
    location.directory = fs::weakly_canonical(fs::absolute(words.index), error).string();
    if (error) return Error{ErrorCode::kAccess, fmt::format("{}: {}; check the path", words.index, error.message())};
    if (location.directory.ends_with('/')) location.directory.pop_back();
  }
  ASSIGN_OR_RETURN(location.described, DescribeDevices(named, location.directory, options));
  ASSIGN_OR_RETURN(location.name, NameOf(named, location.directory));
  return location;
}

std::optional<StoreLocation> FindServedAs(const std::string& source, const StoreLocation& store) {
  const auto description = Describe(store);
  if (!description) return std::nullopt;
  StoreLocation served(source);
  Words words;
  struct stat status = {};
  if (stat(source.c_str(), &status) != 0) {
    words = Split(source);
  } else if (!S_ISDIR(status.st_mode)) {
    words.paths = {source};
  }
  if (words.paths.empty()) {
    const auto other = store.described ? ReadStoreDescription(source) : Error{ErrorCode::kNotFound};
    if (!other || other->id != description->id) return std::nullopt;
    for (const auto& device : other->devices) words.paths.push_back(DevicePath(source, device));
  } else {
    const std::string usual = fmt::format("{}/{}", kRootIndexes, ToString(description->id));
    served.directory = words.index.empty() ? usual : words.index;
    served.described = *description;
    for (auto& device : served.described->devices) device.path = DevicePath(store.directory, device);
  }
  const auto is_own = [&](const std::string& path) {
    const auto identity = IdentityOf(path);
    return identity && std::ranges::any_of(description->devices, [&](const StoreDescription::Device& device) {
             return IdentityOf(DevicePath(store.directory, device)) == identity;
           });
  };
  return std::ranges::all_of(words.paths, is_own) ? std::optional(std::move(served)) : std::nullopt;
}

Result<StoreDescription> Describe(const StoreLocation& location) {
  if (!location.described) return ReadStoreDescription(location.directory);
  StoreDescription description = *location.described;
  const auto listed = ReadStoreDescription(location.directory);
  if (!listed || listed->id != description.id || listed->devices.size() != description.devices.size()) {
    return description;
  }
  description.created = listed->created;
  for (size_t index = 0; index < description.devices.size(); ++index) {
    const auto identity = IdentityOf(DevicePath(location.directory, listed->devices[index]));
    if (!identity || identity != IdentityOf(description.devices[index].path)) continue;
    description.devices[index].path = listed->devices[index].path;
  }
  return description;
}

Result<void> PrepareIndex(const StoreLocation& location, const std::vector<Uuid>& replaced) {
  const Uuid& id = location.described->id;
  const auto usual = FindIndex(id);
  if (usual && *usual == location.directory) {
    ASSIGN_OR_RETURN(const std::string cache, CacheDirectory());
    // /var/cache is for all users.
    const mode_t mode = geteuid() == 0 ? 0755 : 0700;
    if (mkdir(cache.c_str(), mode) != 0 && errno != EEXIST) return CannotMake(cache);
    ASSIGN_OR_RETURN(auto directory, GuardedDirectory::Open(cache));
    for (const std::string& name : {std::string(kCacheName), ToString(id)}) {
      auto next = directory.OpenDirectory(name);
      if (!next && next.error().code == ErrorCode::kNotFound) {
        const auto made = directory.MakeDirectory(name);
        if (!made && made.error().code != ErrorCode::kExists) return made;
        next = directory.OpenDirectory(name);
      }
      if (!next) return next.error();
      directory = *std::move(next);
    }
  } else if (mkdir(location.directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return CannotMake(location.directory);
  }
  const auto listed = ReadStoreDescription(location.directory);
  if (!listed && listed.error().code == ErrorCode::kVersion) return listed.error();
  if (!listed) return CheckEntries(location.directory);
  if (listed->id == id || std::ranges::find(replaced, listed->id) != replaced.end()) return {};
  return Error{ErrorCode::kInvalid,
               fmt::format("{}: is of another store, {}; name another directory for the index", location.directory,
                           ToString(listed->id))};
}

void RemoveIndex(const Uuid& id) {
  const auto directory = FindIndex(id);
  if (!directory || !fs::exists(*directory)) return;
  std::error_code error;
  if (const auto lock = StoreLock::Acquire(*directory)) fs::remove_all(*directory, error);
  if (error) spdlog::warn("{}: cannot be removed: {}; remove it", *directory, error.message());
}

}  // namespace weightfs
