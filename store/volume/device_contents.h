// SPDX-License-Identifier: Apache-2.0
// What devices hold: format overwrites no existing content by accident, and a store finds its devices under other names
// than those in its description, because the kernel numbers block devices anew at each start of the machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/result.h"
#include "engine/file_device.h"
#include "store/volume/store_description.h"

namespace weightfs {

// Opens a device to read from it, without locks and while others may use it.
Result<std::unique_ptr<FileDevice>> OpenToExamine(const std::string& path);

// What is the same for all paths of a block device or regular file; nullopt if the path leads to neither.
std::optional<std::pair<dev_t, uint64_t>> IdentityOf(const std::string& path);

struct DeviceContents {
  std::string words;      // "a signature of ext4 (filesystem)", "a device of a weightfs store"
  bool of_store = false;  // by a superblock, or by a root of the log
  bool damaged = false;   // of a store, but without a valid superblock: RecoverStore may rebuild it
  int partitions = 0;     // of its partition table
  bool unused = false;    // it has one partition, which is of kPartitionType and empty: MakePartition was interrupted
};

// Describes the content, also of the partitions of a disk. Returns nullopt when libblkid finds no signature and all
// bytes before the data area are zero. Returns kIo with a full message when the content cannot be read.
Result<std::optional<DeviceContents>> DescribeContents(const std::string& path);

// Looks for each device whose listed path does not lead to it, by its superblock: first at the listed paths of the
// other devices, then in by-id and by-partuuid of `links`, directories of links to devices (/dev/disk). Changes the
// paths in `description` and logs each change. A path remains as it is if the device is found nowhere, if several
// devices have its superblock (a copy), and if it is relative to the store's directory. Returns true if a path was
// changed.
bool FindMovedDevices(const std::string& directory, const std::string& links, StoreDescription* description);

}  // namespace weightfs
