// SPDX-License-Identifier: Apache-2.0
// Checks a store that is not in use, and repairs its catalog.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/progress.h"
#include "common/result.h"
#include "common/units.h"
#include "engine/block_device.h"
#include "meta/kv_store.h"

namespace weightfs {

struct FsckOptions {
  bool repair = false;       // the catalog must be open for writing
  bool verify_data = false;  // read every written block and compare its checksum
  // Progress of the passes: first catalog bytes (total estimated); with verify_data, data bytes; with `repair`,
  // repairs.
  ProgressFunction progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // when true, CheckStore returns kShutdown; may be null
  // The bytes of each device that belong to the store, from its superblock (StoreOptions::device_sizes); empty: all of
  // them.
  std::vector<ByteCount> device_sizes = {};
  // Called once, when the check has ended and before the first change. May be empty.
  std::function<Result<void>()> before_repair = nullptr;
};

enum class FindingKind : unsigned char {
  kDamagedKey,     // does not have the form of its kind
  kDamagedRecord,  // a value that cannot be decoded
  kLostInode,      // no name refers to it, and it is not an orphan
  kDanglingEntry,  // a name in, or for, a missing inode; or one that no directory may contain
  kWrongEntryType,
  kWrongLinkCount,
  kWrongParent,    // a directory's recorded parent is not the directory that lists it
  kSecondEntry,    // a directory with two names
  kUnreachable,    // directories that list each other in a cycle
  kWrongOrphan,    // listed as an orphan, but missing or in use
  kExtentOutside,  // not on any device, or beyond the maximum file size
  kExtentOverlap,  // shares blocks of a device or of a file with another extent
  kStrayRecord,    // an extent, checksum or attribute of an inode that does not exist or cannot have it
  kWrongBlockCount,
  kMissingExtents,  // fewer blocks than the inode records: data is lost
  kWrongFlags,
  kMissingChecksums,
  kWrongFact,       // a counter of the whole store
  kDataMismatch,    // a block whose checksum differs
  kDataUnreadable,  // the device reports an error
};

// A short name in lower case, such as "wrong link count".
std::string_view FindingKindName(FindingKind kind);

enum class FindingSeverity : unsigned char {
  kMinor,  // a count or a leftover record: nothing is lost
  kMajor,  // names or data are, or may be, lost
};

struct Finding {
  FindingKind kind;
  FindingSeverity severity;
  std::string text;       // one line: the path or the inode number, and the problem
  bool repaired = false;  // by this call
};

struct FsckReport {
  std::vector<Finding> findings;  // at most kMaximumFindings, in the order of detection
  uint64_t problems = 0;          // all findings, including those not kept
  uint64_t repaired = 0;          // how many of the problems were repaired
  uint64_t inodes = 0, directories = 0, files = 0, entries = 0, orphans = 0, extents = 0;
  BlockCount mapped_blocks;
  ByteCount verified_bytes;  // read and compared with checksums

  static constexpr size_t kMaximumFindings = 10'000;
  // True when the check found no problem. A repaired store is clean in the next check, not in this one.
  bool clean() const { return problems == 0; }
  // True when no problem remains.
  bool sound() const { return problems == repaired; }
};

// Reads the whole catalog (with verify_data also the data) and reports problems. With `repair` it also:
// - corrects counts and parents;
// - deletes names without an inode, leftover records, and extents that are damaged, out of range or overlapping (of two
//   overlapping extents, the one of the older generation);
// - gives inodes without a name one in /lost+found;
// - rebuilds damaged inodes as far as names and extents describe them;
// - recomputes missing checksums from the data on the devices.
// Data whose checksum differs stays as it is. Repairs are durable on return. Memory use: about 80 bytes per inode and
// 72 per extent. Records of an unknown format count as damaged, so the caller must refuse a store of a newer weightfs
// first (its superblocks tell). Keys of unknown kinds and unknown facts are left alone. Returns only errors of the
// catalog; problems of the store are in the report.
Result<FsckReport> CheckStore(KvStore& catalog, std::span<BlockDevice* const> devices, const FsckOptions& options);

}  // namespace weightfs
