// SPDX-License-Identifier: Apache-2.0
// store.json: the description of a store. See docs/FORMAT.md section 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/units.h"
#include "engine/superblock.h"

namespace weightfs {

// Names in the store directory.
inline constexpr const char* kDescriptionName = "store.json";

inline constexpr const char* kLockName = "lock";
inline constexpr const char* kCatalogName = "meta";
inline constexpr const char* kPoolName = "pool";
inline constexpr const char* kLogName = "weightfs.log";
// Beside the catalog: one that is being built, one that is to be removed, and the beginning of the names of replaced
// ones that are kept.
inline constexpr const char* kNewCatalogName = "meta.recovering";
inline constexpr const char* kReplacedCatalogName = "meta.replaced";
inline constexpr const char* kOldCatalogs = "meta.damaged-";

// True when the directory contains a store, even if this user cannot read it.
bool HoldsStore(const std::string& directory);

// The maximum number of devices of one store; more than any machine has.
inline constexpr size_t kMaximumDevices = 1024;

// The content of store.json: {"format": 1, "id": UUID, "devices": [{"index": 0, "id": UUID, "path": "pool", "size":
// BYTES}], "created": ISO 8601}. Relative paths are relative to the store directory.
struct StoreDescription {
  struct Device {
    DeviceId index;
    Uuid id{};
    std::string path;
    ByteCount size;
  };
  Uuid id{};
  uint32_t format = kFormatVersion;
  std::string created;
  std::vector<Device> devices;
};

// Returns kNotFound when `directory` is not a store, kCorrupt when store.json is damaged, kVersion when it is newer
// than this program.
Result<StoreDescription> ReadStoreDescription(const std::string& directory);
// What a store in `directory` lacks and can get back by RecoverStore: "its store.json is missing"; nullopt if there is
// no store, or nothing is missing.
std::optional<std::string> FindDamage(const std::string& directory);
// Parses the text of a store.json; `path` is for messages.
Result<StoreDescription> ParseDescription(const std::string& path, const std::string& text);

// The text of store.json.
std::string ToJson(const StoreDescription& description);
// Replaces store.json atomically and durably.
Result<void> WriteStoreDescription(const std::string& directory, const StoreDescription& description);

// The path of a device of the store in `directory`.
std::string DevicePath(const std::string& directory, const StoreDescription::Device& device);

}  // namespace weightfs
