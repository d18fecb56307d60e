// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/pool_device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "bench/suite/basics.h"
#include "common/guarded_directory.h"
#include "lease/ioctl.h"

namespace weightfs::bench {

Result<PoolDevices> ReadPoolDevices(const std::string& store) {
  constexpr size_t kLargestDescription = kMiB;
  const std::string path = store + "/store.json";
  ASSIGN_OR_RETURN(const GuardedDirectory directory, GuardedDirectory::Open(store));
  ASSIGN_OR_RETURN(const std::string text, directory.ReadFile("store.json", kLargestDescription));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object() || !json.contains("devices") || !json["devices"].is_array()) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: is no description of a store", path)};
  }
  PoolDevices devices;
  for (const auto& device : json["devices"]) {
    std::string name = device.is_object() ? device.value("path", std::string()) : std::string();
    if (!name.starts_with('/')) name = store + "/" + name;
    struct stat status = {};
    devices.any_block_device |= stat(name.c_str(), &status) == 0 && S_ISBLK(status.st_mode);
    devices.paths.push_back(std::move(name));
  }
  return devices;
}

namespace {

// Enters the whole MiBs of one extent.
void Enter(const weightfs_extent& extent, std::vector<uint64_t>* places) {
  for (uint64_t at = RoundUp(extent.first, kMiB); at + kMiB <= extent.first + extent.length; at += kMiB) {
    if (at / kMiB < places->size()) (*places)[at / kMiB] = extent.physical + (at - extent.first);
  }
}

}  // namespace

Result<std::vector<uint64_t>> PlacesOf(const std::string& path, uint64_t size) {
  ASSIGN_OR_RETURN(const File file, File::Open(path, O_RDONLY));
  if (fsync(file.get()) != 0) return SystemError(path, "fsync");
  std::vector<uint64_t> places(size / kMiB, 0);  // no data begins at 0: a superblock lies there
  weightfs_extents answer{};
  answer.version = WEIGHTFS_IOC_VERSION;
  do {
    if (ioctl(file.get(), WEIGHTFS_IOC_EXTENTS, &answer) != 0)
      return SystemError(path, "its extents cannot be asked for");
    for (uint32_t index = 0; index < answer.count; ++index) Enter(answer.extents[index], &places);
  } while (answer.count == WEIGHTFS_EXTENTS_MAX);
  for (const uint64_t place : places) {
    if (place == 0) return Error{ErrorCode::kNotSupported, "the file lies in pieces too small for the reference"};
  }
  return places;
}

}  // namespace weightfs::bench
