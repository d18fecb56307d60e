// SPDX-License-Identifier: Apache-2.0
// The keys of the catalog: one kind byte, then big-endian integers, so that byte order is numeric order. See
// docs/FORMAT.md section 3; this header and that section change together.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/units.h"

namespace weightfs::keys {

inline constexpr char kInode = 'i';      // i | ino                     → InodeRecord
inline constexpr char kEntry = 'd';      // d | parent ino | name       → EntryRecord
inline constexpr char kExtent = 'e';     // e | ino | first file block  → ExtentRecord
inline constexpr char kChecksums = 'c';  // c | ino | segment           → CRC-32C of each block of the segment
inline constexpr char kAttribute = 'x';  // x | ino | name              → extended attribute, verbatim
inline constexpr char kOrphan = 'o';     // o | ino                     → empty: no link left, still referenced
inline constexpr char kReference = 'r';  // r | device | device block   → reference count of a shared extent (reserved)
inline constexpr char kStore = 'S';      // S | name                    → facts of the store

inline constexpr uint64_t kSegmentBlocks = 256;  // blocks per checksum segment: 1 MiB of file

// The number of checksum segments of a file of `size` bytes.
constexpr uint64_t SegmentsOf(uint64_t size) {
  return RoundUp(size, kSegmentBlocks * kBlockSize) / (kSegmentBlocks * kBlockSize);
}

std::string Inode(InodeId ino);
std::string Entry(InodeId parent, std::string_view name);
std::string EntryPrefix(InodeId parent);
std::string Extent(InodeId ino, FileBlock first);
std::string ExtentPrefix(InodeId ino);
std::string Checksums(InodeId ino, uint64_t segment);
std::string Attribute(InodeId ino, std::string_view name);
std::string AttributePrefix(InodeId ino);
std::string Orphan(InodeId ino);
std::string Store(std::string_view name);
std::string KindPrefix(char kind);
// The smallest key greater than every key with this prefix; empty when there is none (no kind byte is 0xFF).
std::string PrefixEnd(std::string prefix);

// The parts of a key; nullopt when it does not have the form of its kind. `name` (1 to 255 bytes) points into the key.
struct NamedKey {
  InodeId ino;
  std::string_view name;
};  // Entry (ino = parent) and Attribute
struct IndexedKey {
  InodeId ino;
  uint64_t index;
};                                                        // Extent (block) and Checksums (segment)
std::optional<InodeId> ParseInode(std::string_view key);  // Inode and Orphan
std::optional<NamedKey> ParseNamed(std::string_view key);
std::optional<IndexedKey> ParseIndexed(std::string_view key);

}  // namespace weightfs::keys
