// SPDX-License-Identifier: Apache-2.0
// Values of the catalog. Little-endian, each with a leading format byte; Decode refuses what it does not know with
// kCorrupt (or kVersion for a greater format byte) and never reads or allocates past its input. A decoded record is
// possible: its type and flags are known, its sizes and offsets fit 63 bits.
// docs/FORMAT.md section 4; this header and that section change together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// Seconds and nanoseconds since the epoch; nanoseconds in [0, 999'999'999], also before the epoch.
struct Timestamp {
  int64_t seconds = 0;
  uint32_t nanoseconds = 0;
  constexpr auto operator<=>(const Timestamp&) const = default;
  static Timestamp Now();  // CLOCK_REALTIME
};

struct InodeRecord {
  uint32_t mode = 0;  // type and permission bits, as in st_mode
  uint32_t uid = 0, gid = 0;
  uint32_t links = 0;
  uint32_t device_major = 0, device_minor = 0;  // of device nodes
  uint32_t flags = 0;                           // InodeFlags
  uint64_t generation = 0;                      // inode numbers are never used again; kept for NFS-like handles
  uint64_t size = 0;                            // bytes
  uint64_t blocks = 0;                          // kBlockSize blocks that extents cover
  uint64_t data_version = 0;                    // grows with each commit of data
  uint64_t parent = 0;                          // of a directory: its parent inode
  Timestamp accessed, modified, changed, created;
  std::string symlink;  // the target of a symbolic link, at most 4,095 bytes
  bool operator==(const InodeRecord&) const = default;

  std::string Encode() const;
  static Result<InodeRecord> Decode(std::string_view bytes);
};

enum InodeFlags : uint32_t {
  kInodeHasAttributes = 1,  // at least one extended attribute was ever set: answers ENODATA without a look-up otherwise
  kInodeUnnamed = 2,        // never had a name (O_TMPFILE): may get its first link though it has none
};

struct EntryRecord {
  InodeId ino;
  uint32_t type = 0;  // S_IFMT bits of the inode's mode
  bool operator==(const EntryRecord&) const = default;

  std::string Encode() const;
  static Result<EntryRecord> Decode(std::string_view bytes);
};

// A run of a file's blocks on one device. Carries its own CRC-32C, taken over the key and the value, so that a record
// under the wrong key is found.
struct ExtentRecord {
  DeviceId device;
  DeviceBlock start;
  BlockCount count;         // 1 to kMaximumExtentBlocks
  uint32_t flags = 0;       // ExtentFlags
  uint64_t generation = 0;  // data_version of the commit that wrote it
  bool operator==(const ExtentRecord&) const = default;

  std::string Encode(std::string_view key) const;
  static Result<ExtentRecord> Decode(std::string_view key, std::string_view bytes);
};

inline constexpr uint64_t kMaximumExtentBlocks = 64 * kMiB / kBlockSize;

enum ExtentFlags : uint32_t {
  kExtentUnwritten = 1,  // allocated by fallocate, reads as zeros, no checksums
  kExtentShared = 2,     // has a reference count under keys::kReference (reserved)
};

// Checksums of one segment: CRC-32C of each block, by index in the segment; entries of blocks without a written
// extent mean nothing. At most keys::kSegmentBlocks.
std::string EncodeChecksums(const std::vector<uint32_t>& checksums);
Result<std::vector<uint32_t>> DecodeChecksums(std::string_view bytes);

}  // namespace weightfs
