// SPDX-License-Identifier: Apache-2.0
// The leases that the store gives to holders who read and write the devices themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/unique_fd.h"
#include "store/space/space_manager.h"
#include "store/types.h"

namespace weightfs {

class HotFile;

// The maximum size of a read lease. Its checksums are in memory.
inline constexpr BlockCount kLargestLease{512 * kGiB / kBlockSize};

// The location of a file's bytes at one moment. The blocks keep their content while the lease lives.
// Move-only; destroy it before the store.
struct ReadLease {
  uint64_t file_size = 0;  // bytes
  FileBlock first;
  BlockCount count;                 // of the range, up to the end of the file
  std::vector<FileExtent> extents;  // in order; gaps read as zeros
  std::vector<uint32_t> checksums;  // CRC-32C of each block of the range; 0 in gaps
  SpacePin pin;
  UniqueFd memory;  // hot memory with all bytes of the range, at their offsets in the file; none if they are not loaded
};

// The maximum number of bytes that one call loads into memory for a MapLease.
inline constexpr uint64_t kMostMapped = 256 * kMiB;

// Memory with the content of a file at one moment.
struct MapLease {
  uint64_t content = 0;    // HotFile::id: calls that return another one are of another content. 0: of LeaseLoaded
  uint64_t file_size = 0;  // bytes
  uint64_t end = 0;        // offset in bytes of the end of what is loaded, from the offset of the call on
  UniqueFd memory;         // a file of the same size, for reading; none for an empty range
};

// Memory with the content of a file that nobody can change, for the kernel.
struct PassedMemory {
  std::shared_ptr<HotFile> content;
  UniqueFd memory;  // none: not all of the file is loaded, or somebody can change it
};

// Bytes that are already on the devices and become a part of a file.
struct DirectWrite {
  uint64_t offset = 0;                    // a multiple of kBlockSize
  uint64_t length = 0;                    // at least 1; a multiple of kBlockSize unless the file ends there
  std::optional<uint64_t> new_size = {};  // the new file size; nullopt: never truncate
  std::span<const uint32_t> checksums;    // CRC-32C of each block
};

}  // namespace weightfs
