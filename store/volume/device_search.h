// SPDX-License-Identifier: Apache-2.0
// Finds the devices of a store that have other names than in its description: the kernel numbers block devices anew at
// each start of the machine.
#pragma once

#include <string>

#include "store/volume/store_directory.h"

namespace weightfs {

// Looks for each device whose listed path does not lead to it, by its superblock: first at the listed paths of the
// other devices, then in by-id and by-partuuid of `links`, directories of links to devices (/dev/disk). Changes the
// paths in `description` and logs each change. A path remains as it is if the device is found nowhere, if several
// devices have its superblock (a copy), and if it is relative to the store's directory. Returns true if a path was
// changed.
bool FindMovedDevices(const std::string& directory, const std::string& links, StoreDescription* description);

}  // namespace weightfs
