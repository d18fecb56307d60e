// SPDX-License-Identifier: Apache-2.0
// Partitions of disks. A store in a partition of a type of its own is visible to disk tools, which know no superblock
// of weightfs. See docs/FORMAT.md section 2.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/units.h"
#include "engine/file_device.h"
#include "engine/superblock.h"

namespace weightfs {

// The type of a partition of weightfs in a GPT.
inline constexpr const char* kPartitionType = "7fe1dc2d-3f1d-4f5a-87bb-727b913520e3";

// The bytes of a disk before the partition of MakePartition, and at most behind it.
inline constexpr uint64_t kPartitionOffset = kMiB;

// The name of the partition of a device of a store, and what disk tools show as its label.
std::string PartitionName(const Uuid& store, size_t index);

// The device files of the partitions of a disk that the kernel has; none for anything else.
std::vector<std::string> PartitionsOf(const std::string& disk);

// kInvalid unless it is a whole block device.
Result<void> CheckIsDisk(const std::string& path);

// Fails if MakePartition would: sfdisk is missing, a partition of the disk is in use, the process lacks the rights, or
// the disk can have no partitions.
Result<void> CheckPartitionable(const FileDevice& disk);

// Replaces the content of the disk, which must be open exclusively, by a GPT with one partition over the whole disk,
// and opens that: by its link in /dev/disk/by-partuuid where udev makes one. Its UUID is `id`. An error leaves a disk
// with no partition, or with an empty one.
Result<std::unique_ptr<FileDevice>> MakePartition(std::unique_ptr<FileDevice> disk, const Uuid& id,
                                                  const std::string& name);

}  // namespace weightfs
