// SPDX-License-Identifier: Apache-2.0
#include "store/volume/disk_partition.h"

#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <tuple>

#include "common/run_program.h"
#include "io/huge_pages.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kNodeLimit{10};
constexpr std::chrono::milliseconds kNodePoll{10};

// What the kernel says of a block device; an empty path for anything else.
fs::path KernelEntry(const std::string& device) {
  struct stat status = {};
  if (stat(device.c_str(), &status) != 0 || !S_ISBLK(status.st_mode)) return {};
  return fmt::format("/sys/dev/block/{}:{}", major(status.st_rdev), minor(status.st_rdev));
}

Result<void> Run(const std::string& disk, std::vector<std::string> words, std::string_view input = {}) {
  const std::string name = words.front();
  std::string output;
  const auto status = RunProgram(std::move(words), input, &output);
  if (!status && status.error().code == ErrorCode::kNotFound) {
    return Error{ErrorCode::kNotFound, fmt::format("{}: cannot be partitioned without the program {}, which is not in "
                                                   "PATH; install it (in Debian: apt-get install fdisk)",
                                                   disk, name)};
  }
  if (!status) return SystemError(name, "cannot be run", status.error().error_number());
  if (*status == 0) return {};
  std::replace(output.begin(), output.end(), '\n', ' ');
  return Error{ErrorCode::kIo, fmt::format("{}: cannot be partitioned: {} failed with {}: {}", disk, name, *status,
                                           output)};
}

// Makes the kernel read the partition table.
Result<void> Reread(const FileDevice& disk) {
  ASSIGN_OR_RETURN(const UniqueFd file, disk.Duplicate());
  if (ioctl(file.get(), BLKRRPART) == 0) return {};
  Error error = SystemError(disk.path(), "cannot be partitioned");
  if (error.code == ErrorCode::kInvalid) error.what += "; the kernel makes no partitions there: omit --partition";
  if (error.code == ErrorCode::kAccess) error.what += "; run it as root";
  return error;
}

// Opens the partition. It may be missing for a moment: udev reads the table, too, when a program has written to a disk,
// and the kernel then makes the partitions anew.
Result<std::unique_ptr<FileDevice>> OpenPartition(const std::string& node, const std::string& link) {
  const bool has_udev = access("/run/udev/control", F_OK) == 0;
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    const bool late = std::chrono::steady_clock::now() - start >= kNodeLimit;
    const bool linked = access(link.c_str(), F_OK) == 0;
    if (linked || !has_udev || late) {
      auto partition = FileDevice::Open(linked ? link : node, {});
      const bool missing = !partition && (partition.error().code == ErrorCode::kNotFound ||
                                          partition.error().code == ErrorCode::kNoData);
      if (!missing || late) return partition;
    }
    std::this_thread::sleep_for(kNodePoll);
  }
}

}  // namespace

std::string PartitionName(const Uuid& store, size_t index) {
  return fmt::format("weightfs-{}-{}", ToString(store).substr(0, 8), index);
}

std::vector<std::string> PartitionsOf(const std::string& disk) {
  std::vector<std::string> nodes;
  std::error_code error;
  for (fs::directory_iterator entry(KernelEntry(disk), error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (!fs::exists(entry->path() / "partition", ignored)) continue;
    std::string name = entry->path().filename().string();
    std::replace(name.begin(), name.end(), '!', '/');
    nodes.push_back("/dev/" + name);
  }
  std::ranges::sort(nodes, {}, [](const std::string& node) { return std::tuple(node.size(), node); });
  return nodes;
}

Result<void> CheckIsDisk(const std::string& path) {
  const fs::path entry = KernelEntry(path);
  std::error_code ignored;
  if (!entry.empty() && !fs::exists(entry / "partition", ignored)) return {};
  return Error{ErrorCode::kInvalid, fmt::format("{}: {}; --partition needs whole disks: name one, or omit --partition",
                                                path, entry.empty() ? "not a block device" : "is itself a partition")};
}

Result<void> CheckPartitionable(const FileDevice& disk) {
  RETURN_IF_ERROR(Run(std::string(disk.path()), {"sfdisk", "--version"}));
  return Reread(disk);
}

Result<std::unique_ptr<FileDevice>> MakePartition(std::unique_ptr<FileDevice> disk, const Uuid& id,
                                                  const std::string& name) {
  const std::string path(disk->path());
  // An interrupted format leaves an empty partition, and no superblock of an old store before it.
  ASSIGN_OR_RETURN(const auto zeros, HugePageMemory::Map(kPartitionOffset + kDataOffset));
  RETURN_IF_ERROR(disk->Write(ByteOffset{0}, {zeros.data(), zeros.size()}));
  RETURN_IF_ERROR(disk->Flush());
  // sfdisk must not ask whether the disk is in use: this process has it open.
  RETURN_IF_ERROR(Run(path,
                      {"sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", "--wipe", "always", "--wipe-partitions",
                       "always", "--", path},
                      fmt::format("label: gpt\nstart={}MiB, type={}, uuid={}, name={}\n", kPartitionOffset / kMiB,
                                  kPartitionType, ToString(id), name)));
  RETURN_IF_ERROR(Reread(*disk));
  // Not every kernel reads a GPT.
  if (PartitionsOf(path).empty()) RETURN_IF_ERROR(Run(path, {"partx", "--add", "--", path}));
  const auto nodes = PartitionsOf(path);
  if (nodes.size() != 1) {
    return Error{ErrorCode::kIo, fmt::format("{}: its new partition does not appear in /sys; check the kernel's log "
                                             "(dmesg), and run the same command again",
                                             path)};
  }
  disk.reset();  // Nothing else can open the partition exclusively before, and udev waits for the lock.
  return OpenPartition(nodes.front(), "/dev/disk/by-partuuid/" + ToString(id));
}

}  // namespace weightfs
