// SPDX-License-Identifier: Apache-2.0
// The fields of HDF5's superblock that the driver needs, by the "HDF5 File Format Specification Version 3.0", II.A.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>

namespace weightfs::hdf5 {

struct Superblock {
  size_t size = 0;    // bytes
  bool swmr = false;  // the file is open for SWMR writing
};

// Returns the superblock at the start of `bytes`, which may have more after it. nullopt if there is none.
inline std::optional<Superblock> ParseSuperblock(std::span<const std::byte> bytes) {
  constexpr std::array<unsigned char, 8> kSignature{0x89, 'H', 'D', 'F', '\r', '\n', 0x1A, '\n'};
  constexpr size_t kVersion = 8;
  constexpr size_t kFlags = 11;
  constexpr unsigned kSharedAccess = 4;
  constexpr size_t kShortest = 24;  // of version 2 with offsets of 2 bytes
  if (bytes.size() < kShortest || std::memcmp(bytes.data(), kSignature.data(), kSignature.size()) != 0) return {};
  const auto at = [&](size_t index) { return std::to_integer<unsigned>(bytes[index]); };
  const unsigned version = at(kVersion);
  if (version < 2) {
    // Four addresses, and a symbol table entry with two offsets and 24 bytes.
    return Superblock{.size = (version == 0 ? 24 : 28) + 6 * at(13) + 24};
  }
  return Superblock{.size = 16 + 4 * at(9), .swmr = version == 3 && (at(kFlags) & kSharedAccess) != 0};
}

}  // namespace weightfs::hdf5
