// SPDX-License-Identifier: Apache-2.0
// The fields of HDF5's superblock that the driver needs, by the "HDF5 File Format Specification Version 3.0", II.A.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace weightfs::hdf5 {

struct Superblock {
  size_t size = 0;    // bytes
  bool swmr = false;  // the file is open for SWMR writing
};

// Returns the superblock at the start of `bytes`, which may have more after it. nullopt if there is none.
std::optional<Superblock> ParseSuperblock(std::span<const std::byte> bytes);

}  // namespace weightfs::hdf5
