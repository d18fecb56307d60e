// SPDX-License-Identifier: Apache-2.0
// A Target that reads rows of a file through leases that it does not own alone. The rows follow each other in a virtual
// file, in any order. Each begins at a multiple of the stride there, or behind it, so that blocks stay blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/lease/lease_windows.h"
#include "client/target.h"

namespace weightfs::client {

// Where the rows are. Row i begins at `offsets[i]` of the file, and at i * stride + offsets[i] % kBlockSize of the
// virtual file. The blocks of a row fit into the stride.
struct RowLayout {
  std::vector<uint64_t> offsets;
  uint64_t length = 0;  // of each row, in bytes
  uint64_t stride = 0;  // a multiple of kBlockSize
};

// The windows of all rows must be pinned.
std::unique_ptr<Target> MakeLeasedRows(std::string path, const LeaseWindows& leases, LeaseWindows::Pins pins,
                                       RowLayout layout);

}  // namespace weightfs::client
