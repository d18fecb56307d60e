// SPDX-License-Identifier: Apache-2.0
// The values of the catalog. They are little-endian and begin with a format byte. Decode rejects unknown content with
// kCorrupt (or kVersion for a greater format byte) and never reads or allocates beyond its input. A decoded record is
// plausible: its type and flags are known, and its sizes and offsets fit in 63 bits. See docs/FORMAT.md section 4; this
// header and that section change together.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "common/units.h"
#include "meta/kv_store.h"

namespace weightfs {

// Seconds and nanoseconds since the epoch. Nanoseconds are in [0, 999'999'999], before the epoch too.
struct Timestamp {
  int64_t seconds = 0;
  uint32_t nanoseconds = 0;
  constexpr auto operator<=>(const Timestamp&) const = default;
  static Timestamp Now();  // CLOCK_REALTIME
};

// The part of an inode's record that stat(2) returns as it is.
struct InodeAttributes {
  uint32_t mode = 0;  // type and permission bits, as in st_mode
  uint32_t uid = 0, gid = 0;
  uint32_t links = 0;
  uint32_t device_major = 0, device_minor = 0;  // of device nodes
  uint64_t generation = 0;                      // for NFS-like handles; inode numbers are never reused
  uint64_t size = 0;                            // bytes
  Timestamp accessed, modified, changed, created;
  bool operator==(const InodeAttributes&) const = default;
};

struct InodeRecord : InodeAttributes {
  uint32_t flags = 0;         // InodeFlags
  uint64_t blocks = 0;        // kBlockSize blocks that extents map
  uint64_t data_version = 0;  // incremented by each commit of data
  uint64_t parent = 0;        // of a directory: its parent's inode number
  std::string symlink;        // the target of a symbolic link, at most 4,095 bytes
  bool operator==(const InodeRecord&) const = default;

  std::string Encode() const;
  static Result<InodeRecord> Decode(std::string_view bytes);
};

enum InodeFlags : uint32_t {
  kInodeHasAttributes = 1,  // an extended attribute was set at some time; without it ENODATA needs no lookup
  kInodeUnnamed = 2,        // never had a name (O_TMPFILE): may get its first link although it has none
  kInodePublished = 4,      // part of a published directory: immutable. Only in records of format 2
};

// The publication of a directory: it and all inodes below it are immutable (kInodePublished). Stored as the extended
// attribute kPublicationName of the directory, which programs cannot see.
struct PublicationRecord {
  uint64_t version = 0;          // chosen by the user, or derived from the time
  std::array<uint8_t, 16> id{};  // random, different for each publication
  Timestamp time;
  uint64_t files = 0;  // regular files
  uint64_t bytes = 0;  // their sizes together
  bool operator==(const PublicationRecord&) const = default;

  std::string Encode() const;
  static Result<PublicationRecord> Decode(std::string_view bytes);
};

inline constexpr std::string_view kPublicationName = "system.weightfs.publication";
inline constexpr uint64_t kMaximumVersion = INT64_MAX;

struct EntryRecord {
  InodeId ino;
  uint32_t type = 0;  // S_IFMT bits of the inode's mode
  bool operator==(const EntryRecord&) const = default;

  std::string Encode() const;
  static Result<EntryRecord> Decode(std::string_view bytes);
};

// A run of a file's blocks on one device. Has its own CRC-32C over key and value, which detects a record under the
// wrong key.
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

// The checksums of one segment: the CRC-32C of each block, by index in the segment, at most keys::kSegmentBlocks.
// Entries of blocks without a written extent are meaningless.
std::string EncodeChecksums(const std::vector<uint32_t>& checksums);
Result<std::vector<uint32_t>> DecodeChecksums(std::string_view bytes);

// Facts: counters of the whole store, under keys::Store.
//
// Binds the catalog to its store: the store id as text.
inline constexpr const char* kStoreIdFact = "store_id";
// All inode numbers at or above this one are unused. Raised in steps, in the batch of the first inode beyond the old
// value.
inline constexpr const char* kNextInodeFact = "next_ino";
// The number of inode records. The first batch that adds or removes one deletes the fact, and a clean unmount writes it
// again. A mount counts the records if it is missing.
inline constexpr const char* kInodeCountFact = "inodes";

// The greatest version that a publication has got from the time (Namespace::PublishTree).
inline constexpr const char* kLastVersionFact = "last_version";

// Before the number of a directory: some inodes of its tree have kInodePublished, but it has no publication, because
// Namespace::PublishTree or UnpublishTree has not ended. The value is the number, too.
inline constexpr const char* kPublishingFact = "publishing/";

// The time of the latest publication, in nanoseconds since the epoch. Later ones have greater times, whatever the clock
// says (Namespace::PublishTree).
inline constexpr const char* kLastPublicationFact = "last_publication";

std::string EncodeFact(uint64_t number);
// Returns kCorrupt or kVersion when the bytes are not a number.
Result<uint64_t> DecodeFact(std::string_view bytes);

// Returns nullopt when the store does not have the fact.
Result<std::optional<uint64_t>> ReadFact(KvStore& catalog, std::string_view name);

}  // namespace weightfs
