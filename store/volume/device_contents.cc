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
#include <vector>

#include "engine/superblock.h"

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

// Checks every byte before the data area, which format overwrites.
Result<std::optional<std::string>> DescribeHead(int descriptor, const std::string& path) {
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
  for (const uint64_t offset : kSuperblockOffsets) {
    uint64_t magic = 0;
    if (offset + sizeof(magic) > head.size()) break;
    std::memcpy(&magic, head.data() + offset, sizeof(magic));
    if (magic == kSuperblockMagic) return std::optional<std::string>("a device of a weightfs store");
  }
  const auto found = std::find_if(head.begin(), head.end(), [](unsigned char byte) { return byte != 0; });
  if (found == head.end()) return std::optional<std::string>();
  return std::optional<std::string>(fmt::format("data (the byte at {} is not zero)", found - head.begin()));
}

}  // namespace

Result<std::optional<std::string>> DescribeContents(const std::string& path) {
  const UniqueFd device(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!device) return SystemError(path, "cannot be opened");
  // libblkid fails to probe an empty file.
  char byte = 0;
  const ssize_t got = pread(device.get(), &byte, 1, 0);
  if (got < 0) return SystemError(path, "cannot be read");
  if (got == 0) return std::optional<std::string>();
  // Our own magic gives the clearer answer. Otherwise libblkid's answer is preferred, because it also recognizes
  // signatures further on.
  ASSIGN_OR_RETURN(auto head, DescribeHead(device.get(), path));
  if (head.has_value() && head->find("weightfs") != std::string::npos) return head;
  ASSIGN_OR_RETURN(auto signature, DescribeSignature(device.get(), path));
  return signature.has_value() ? signature : head;
}

}  // namespace weightfs
