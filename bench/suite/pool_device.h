// SPDX-License-Identifier: Apache-2.0
// A store whose pool is a block device: there the reference reads the very blocks of a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

namespace weightfs::bench {

struct PoolDevices {
  std::vector<std::string> paths;
  bool any_block_device = false;  // otherwise files, on some filesystem
};
// From the description in a store's directory.
Result<PoolDevices> ReadPoolDevices(const std::string& store);

// Where each MiB of a file on a mount lies on the only device of its store: bytes from the device's start.
// kNotSupported when a MiB of it is not in one piece.
Result<std::vector<uint64_t>> PlacesOf(const std::string& path, uint64_t size);

}  // namespace weightfs::bench
