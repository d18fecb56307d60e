// SPDX-License-Identifier: Apache-2.0
#include "store/volume/device_contents.h"

#include "common/unique_fd.h"

#include <blkid/blkid.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "engine/file_device.h"
#include "engine/superblock.h"
#include "store/replica/replica_reader.h"

namespace weightfs {
namespace {

struct ProbeFree {
  void operator()(blkid_struct_probe* probe) const { blkid_free_probe(probe); }
};
using Probe = std::unique_ptr<blkid_struct_probe, ProbeFree>;

std::string Value(blkid_probe probe, const char* name) {
  const char* value = nullptr;
  if (blkid_probe_lookup_value(probe, name, &value, nullptr) != 0 || value == nullptr) return {};
  return value;
}

// Describes content that libblkid recognizes: a filesystem, RAID, swap or a partition table.
Result<std::optional<std::string>> DescribeSignature(int descriptor, const std::string& path) {
  Probe probe(blkid_new_probe());
  if (probe == nullptr || blkid_probe_set_device(probe.get(), descriptor, 0, 0) != 0) {
    return Error{ErrorCode::kIo, fmt::format("{}: libblkid cannot read it; check the device (dmesg)", path)};
  }
  blkid_probe_enable_superblocks(probe.get(), 1);
  blkid_probe_set_superblocks_flags(probe.get(), BLKID_SUBLKS_TYPE | BLKID_SUBLKS_USAGE | BLKID_SUBLKS_LABEL);
  blkid_probe_enable_partitions(probe.get(), 1);
  switch (blkid_do_safeprobe(probe.get())) {
    case 1: return std::optional<std::string>();
    case -2: return std::optional<std::string>("signatures of several kinds");
    case 0: break;
    default: return Error{ErrorCode::kIo, fmt::format("{}: libblkid cannot read it; check the device (dmesg)", path)};
  }
  const std::string type = Value(probe.get(), "TYPE"), usage = Value(probe.get(), "USAGE");
  const std::string label = Value(probe.get(), "LABEL"), table = Value(probe.get(), "PTTYPE");
  std::string words = type.empty() ? fmt::format("a partition table ({})", table)
                                   : fmt::format("a signature of {} ({})", type, usage.empty() ? "unknown use" : usage);
  if (!label.empty()) words += fmt::format(" labeled '{}'", label);
  return std::optional<std::string>(std::move(words));
}

// Nullopt if it is no device of a store.
Result<std::optional<DeviceContents>> DescribeStoreDevice(const std::string& path, bool has_magic) {
  ASSIGN_OR_RETURN(const auto device, OpenToExamine(path));
  const auto superblock = ReadSuperblock(*device);
  if (superblock || superblock.error().code == ErrorCode::kVersion) {
    return std::optional(DeviceContents{"a device of a weightfs store", true, false});
  }
  if (superblock.error().code != ErrorCode::kCorrupt) return superblock.error();
  BlockDevice* const one[] = {device.get()};
  ASSIGN_OR_RETURN(const auto root, replica::FindRoot(one, std::nullopt));
  if (!has_magic && !root) return std::optional<DeviceContents>();
  return std::optional(DeviceContents{"a device of a weightfs store, with a damaged superblock", true, true});
}

struct Head {
  bool has_magic = false;            // of a superblock
  std::optional<size_t> first_byte;  // that is not zero
};

// Checks every byte before the data area, which format overwrites.
Result<Head> ReadHead(int descriptor, const std::string& path) {
  std::vector<unsigned char> head(kDataOffset);
  size_t filled = 0;
  while (filled < head.size()) {
    const ssize_t got = pread(descriptor, head.data() + filled, head.size() - filled, static_cast<off_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path, "cannot be read");
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  head.resize(filled);
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

}  // namespace

Result<std::unique_ptr<FileDevice>> OpenToExamine(const std::string& path) {
  return FileDevice::Open(path, {.queue_depth = 1, .read_only = true, .direct = false, .exclusive = false});
}

Result<std::optional<DeviceContents>> DescribeContents(const std::string& path) {
  const UniqueFd device(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!device) return SystemError(path, "cannot be opened");
  // libblkid fails to probe an empty file.
  char byte = 0;
  const ssize_t got = pread(device.get(), &byte, 1, 0);
  if (got < 0) return SystemError(path, "cannot be read");
  if (got == 0) return std::optional<DeviceContents>();
  ASSIGN_OR_RETURN(const Head head, ReadHead(device.get(), path));
  if (head.first_byte) {
    ASSIGN_OR_RETURN(auto store, DescribeStoreDevice(path, head.has_magic));
    if (store) return store;
  }
  // It also recognizes signatures behind the head.
  ASSIGN_OR_RETURN(auto signature, DescribeSignature(device.get(), path));
  if (signature) return std::optional(DeviceContents{std::move(*signature)});
  if (!head.first_byte) return std::optional<DeviceContents>();
  return std::optional(DeviceContents{fmt::format("data (the byte at {} is not zero)", *head.first_byte)});
}

}  // namespace weightfs
