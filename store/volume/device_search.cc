// SPDX-License-Identifier: Apache-2.0
#include "store/volume/device_search.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/printable.h"
#include "store/volume/device_contents.h"

namespace weightfs {
namespace {

// A device that may belong to the store. Several paths may lead to it.
struct Candidate {
  std::string path;
  std::pair<dev_t, uint64_t> identity;
  Uuid device{};
};

// Nullopt if the path leads to no device of the store.
std::optional<Candidate> ProbeDevice(const std::string& path, const Uuid& store) {
  const auto identity = IdentityOf(path);
  if (!identity) return std::nullopt;
  const auto device = OpenToExamine(path);
  if (!device) return std::nullopt;
  const auto superblock = ReadSuperblock(**device);
  if (!superblock || superblock->store_id != store) return std::nullopt;
  return Candidate{path, *identity, superblock->device_id};
}

// Sorted, so that the same link is found each time. A disk without a serial number has no link in by-id, and only
// partitions have one in by-partuuid.
std::vector<std::string> PathsIn(const std::string& links) {
  std::vector<std::string> paths;
  for (const char* kind : {"/by-id", "/by-partuuid"}) {
    std::error_code error;
    std::filesystem::directory_iterator entry(links + kind, error);
    for (const decltype(entry) end; !error && entry != end; entry.increment(error)) {
      paths.push_back(entry->path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

bool FindMovedDevices(const std::string& directory, const std::string& links, StoreDescription* description) {
  using Device = StoreDescription::Device;
  std::vector<Candidate> candidates;
  std::vector<Device*> missing;
  for (Device& device : description->devices) {
    auto found = ProbeDevice(DevicePath(directory, device), description->id);
    if (device.path.starts_with('/') && (!found || found->device != device.id)) missing.push_back(&device);
    if (found) candidates.push_back(std::move(*found));
  }
  if (missing.empty()) return false;
  for (const std::string& path : PathsIn(links)) {
    if (auto found = ProbeDevice(path, description->id)) candidates.push_back(std::move(*found));
  }
  bool changed = false;
  for (Device* device : missing) {
    std::map<decltype(Candidate::identity), std::string> found;
    for (const Candidate& candidate : candidates) {
      if (candidate.device == device->id) found.try_emplace(candidate.identity, candidate.path);
    }
    if (found.size() > 1) {
      spdlog::error("device {} of the store is not at {}; both {} and {} have its superblock: write the right path "
                    "into {}/{}",
                    device->index.value, Printable(device->path), Printable(found.begin()->second),
                    Printable(found.rbegin()->second), directory, kDescriptionName);
    }
    if (found.size() != 1) continue;
    spdlog::warn("device {} of the store is now {}, not {}", device->index.value, Printable(found.begin()->second),
                 Printable(device->path));
    device->path = found.begin()->second;
    changed = true;
  }
  return changed;
}

}  // namespace weightfs
