// SPDX-License-Identifier: Apache-2.0
#include "store/volume/device_contents.h"

#include <blkid/blkid.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <vector>

#include "common/log.h"
#include "common/printable.h"
#include "common/system_calls.h"
#include "common/unique_fd.h"
#include "engine/superblock.h"
#include "store/volume/disk_partition.h"
#include "store/wal/wal_reader.h"

namespace weightfs {
namespace {

constexpr uint64_t kSector = 512;  // of libblkid, whatever the device has

struct ProbeFree {
  void operator()(blkid_struct_probe* probe) const { blkid_free_probe(probe); }
};
using Probe = std::unique_ptr<blkid_struct_probe, ProbeFree>;

std::string Value(blkid_probe probe, const char* name) {
  const char* value = nullptr;
  if (blkid_probe_lookup_value(probe, name, &value, nullptr) != 0 || value == nullptr) return {};
  return value;
}

std::string DescribeValues(blkid_probe probe) {
  const std::string type = Value(probe, "TYPE"), usage = Value(probe, "USAGE"), label = Value(probe, "LABEL");
  if (type.empty()) return fmt::format("a partition table ({})", Value(probe, "PTTYPE"));
  return fmt::format("a signature of {} ({}){}", type, usage.empty() ? "unknown use" : usage,
                     label.empty() ? "" : fmt::format(" labeled '{}'", label));
}

struct Head {
  bool has_magic = false;            // of a superblock
  std::optional<size_t> first_byte;  // that is not zero
};

// Checks every byte before the data area, which format overwrites, of a device that begins at `start`.
Result<Head> ReadHead(int descriptor, const std::string& path, uint64_t start = 0) {
  std::vector<unsigned char> head(kDataOffset);
  const ssize_t got = ReadFully(descriptor, std::as_writable_bytes(std::span(head)), start);
  if (got < 0) return SystemError(path, "cannot be read");
  head.resize(static_cast<size_t>(got));
  Head read;
  for (const uint64_t offset : kSuperblockOffsets) {
    uint64_t magic = 0;
    if (offset + sizeof(magic) > head.size()) break;
    std::memcpy(&magic, head.data() + offset, sizeof(magic));
    read.has_magic = read.has_magic || magic == kSuperblockMagic;
  }
  const auto found = std::find_if(head.begin(), head.end(), [](unsigned char byte) { return byte != 0; });
  if (found != head.end()) read.first_byte = found - head.begin();
  return read;
}

// Adds what the partitions of the disk contain.
Result<void> AddPartitions(const std::string& disk, DeviceContents* contents) {
  for (const std::string& node : PartitionsOf(disk)) {
    ASSIGN_OR_RETURN(const auto found, DescribeContents(node));
    if (!found) continue;
    contents->words += fmt::format(", and in {} {}", node, found->words);
    contents->of_store = contents->of_store || found->of_store;
    contents->damaged = contents->damaged || found->damaged;
    contents->unused = false;
  }
  return {};
}

// Describes content that libblkid recognizes: a filesystem, RAID, swap or a partition table.
Result<std::optional<DeviceContents>> DescribeSignature(int descriptor, const std::string& path) {
  Probe probe(blkid_new_probe());
  if (probe == nullptr || blkid_probe_set_device(probe.get(), descriptor, 0, 0) != 0) {
    return Error{ErrorCode::kIo, fmt::format("{}: libblkid cannot read it; check the device (dmesg)", path)};
  }
  blkid_probe_enable_superblocks(probe.get(), 1);
  blkid_probe_set_superblocks_flags(probe.get(), BLKID_SUBLKS_TYPE | BLKID_SUBLKS_USAGE | BLKID_SUBLKS_LABEL);
  blkid_probe_enable_partitions(probe.get(), 1);
  DeviceContents contents;
  switch (blkid_do_safeprobe(probe.get())) {
    case 1: return std::optional<DeviceContents>();
    case -2: contents.words = "signatures of several kinds"; break;
    case 0: contents.words = DescribeValues(probe.get()); break;
    default: return Error{ErrorCode::kIo, fmt::format("{}: libblkid cannot read it; check the device (dmesg)", path)};
  }
  if (blkid_partlist list = blkid_probe_get_partitions(probe.get())) {
    contents.partitions = blkid_partlist_numof_partitions(list);
    contents.words += fmt::format(" with {} partition{}", contents.partitions, contents.partitions == 1 ? "" : "s");
    const auto first = contents.partitions == 1 ? blkid_partlist_get_partition(list, 0) : nullptr;
    const char* const kind = first != nullptr ? blkid_partition_get_type_string(first) : nullptr;
    if (kind != nullptr && std::string_view(kind) == kPartitionType && Value(probe.get(), "TYPE").empty()) {
      // The kernel may not have read the table yet.
      const auto start = static_cast<uint64_t>(blkid_partition_get_start(first)) * kSector;
      ASSIGN_OR_RETURN(const Head head, ReadHead(descriptor, path, start));
      contents.unused = !head.first_byte;
    }
    RETURN_IF_ERROR(AddPartitions(path, &contents));
  }
  return std::optional(std::move(contents));
}

// Nullopt if it is no device of a store.
Result<std::optional<DeviceContents>> DescribeStoreDevice(const std::string& path, bool has_magic) {
  ASSIGN_OR_RETURN(const auto device, OpenToExamine(path));
  const auto superblock = ReadSuperblock(*device);
  if (superblock || superblock.error().code == ErrorCode::kVersion) {
    return std::optional(DeviceContents{"a device of a weightfs store", true, false});
  }
  if (superblock.error().code == ErrorCode::kInvalid) {
    return std::optional(DeviceContents{"a device of a weightfs store at another offset", true, true});
  }
  if (superblock.error().code != ErrorCode::kCorrupt) return superblock.error();
  BlockDevice* const one[] = {device.get()};
  ASSIGN_OR_RETURN(const auto root, wal::FindRoot(one, std::nullopt));
  if (!has_magic && !root) return std::optional<DeviceContents>();
  return std::optional(DeviceContents{"a device of a weightfs store, with a damaged superblock", true, true});
}

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

Result<std::unique_ptr<FileDevice>> OpenToExamine(const std::string& path) {
  return FileDevice::Open(path, {.queue_depth = 1, .read_only = true, .direct = false, .exclusive = false});
}

std::optional<std::pair<dev_t, uint64_t>> IdentityOf(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return std::nullopt;
  if (S_ISBLK(status.st_mode)) return std::pair(status.st_rdev, uint64_t{0});
  return S_ISREG(status.st_mode) ? std::optional(std::pair(status.st_dev, uint64_t{status.st_ino})) : std::nullopt;
}

Result<std::optional<DeviceContents>> DescribeContents(const std::string& path) {
  const UniqueFd device(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!device) return SystemError(path, "cannot be opened");
  // libblkid fails to probe an empty file.
  std::byte byte{};
  const ssize_t got = ReadFully(device.get(), std::span(&byte, 1), 0);
  if (got < 0) return SystemError(path, "cannot be read");
  if (got == 0) return std::optional<DeviceContents>();
  ASSIGN_OR_RETURN(const Head head, ReadHead(device.get(), path));
  // It also recognizes signatures behind the head.
  ASSIGN_OR_RETURN(auto signature, DescribeSignature(device.get(), path));
  if (head.first_byte) {
    ASSIGN_OR_RETURN(auto store, DescribeStoreDevice(path, head.has_magic));
    // Copies of superblocks in a partition are not those of a damaged device.
    if (store && !(store->damaged && signature && signature->partitions > 0)) return store;
  }
  if (signature) return signature;
  if (!head.first_byte) return std::optional<DeviceContents>();
  return std::optional(DeviceContents{fmt::format("data (the byte at {} is not zero)", *head.first_byte)});
}

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
