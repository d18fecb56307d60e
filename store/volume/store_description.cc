// SPDX-License-Identifier: Apache-2.0
#include "store/volume/store_description.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "common/guarded_directory.h"
#include "common/json.h"
#include "common/shell_quote.h"
#include "common/sync_directory.h"
#include "common/system_calls.h"
#include "store/volume/device_contents.h"

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
    if (!WriteFully(file.get(), std::as_bytes(std::span(text)), 0) ||
        RepeatInterrupted([&] { return fsync(file.get()); }) != 0) {
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

}  // namespace weightfs
