// SPDX-License-Identifier: Apache-2.0
// What the store hands to a holder who reads and writes the devices himself.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "store/space/space_manager.h"
#include "store/types.h"

namespace weightfs {

// What one lease for reading covers at most: its checksums are in memory.
inline constexpr BlockCount kLargestLease{512 * kGiB / kBlockSize};

// Bytes of a file as they lay on the devices at one moment; the blocks keep them as long as it lives. Move-only; gone
// before the store.
struct ReadLease {
  uint64_t file_size = 0;  // bytes
  FileBlock first;
  BlockCount count;                 // of the range, as far as the file reaches
  std::vector<FileExtent> extents;  // in order; what lies in none reads as zeros
  std::vector<uint32_t> checksums;  // CRC-32C of each block of the range; 0 where there is no extent
  SpacePin pin;
};

// Bytes that lie on the devices already and become a part of a file.
struct DirectWrite {
  uint64_t offset = 0;                    // a multiple of kBlockSize
  uint64_t length = 0;                    // at least 1; a multiple of kBlockSize unless the file ends with it
  std::optional<uint64_t> new_size = {};  // nothing behind it stays; none: the file keeps what reaches further
  std::span<const uint32_t> checksums;    // CRC-32C of each block
};

}  // namespace weightfs
