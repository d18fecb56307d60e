// SPDX-License-Identifier: Apache-2.0
// Checking a store that nobody uses, and repairing its catalog.
#pragma once

#include <atomic>
#include <cstdint>
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
  // The passes: the catalog's bytes, as it estimates them; with verify_data the data's; with `repair` the repairs.
  ProgressFunction progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // once true, CheckStore gives up with kShutdown; may be null
  // How much of each device belongs to the store, as its superblock says (StoreOptions::device_sizes); empty: all of
  // it.
  std::vector<ByteCount> device_sizes = {};
};

enum class FindingKind : unsigned char {
  kDamagedKey,     // not of its kind's shape
  kDamagedRecord,  // a value that cannot be decoded
  kLostInode,      // no name leads to it, and it does not wait for deletion
  kDanglingEntry,  // a name in, or for, an inode that does not exist, or that no directory may hold
  kWrongEntryType,
  kWrongLinkCount,
  kWrongParent,    // a directory remembers another parent than the one that lists it
  kSecondEntry,    // a directory with two names
  kUnreachable,    // directories that list each other in a ring
  kWrongOrphan,    // listed as deleted, but missing or in use
  kExtentOutside,  // not on any device, or past the end of every file
  kExtentOverlap,  // of the same blocks of a device or of a file
  kStrayRecord,    // an extent, checksum or attribute of an inode that does not exist or has none of these
  kWrongBlockCount,
  kWrongFlags,
  kMissingChecksums,
  kWrongFact,       // a number about the whole store
  kDataMismatch,    // a block whose checksum differs
  kDataUnreadable,  // the device reports an error
};

// A short name, lower-case words: "wrong link count".
std::string_view FindingKindName(FindingKind kind);

enum class FindingSeverity : unsigned char {
  kMinor,  // a count or a leftover: nothing is lost
  kMajor,  // names or data are, or may be, lost
};

struct Finding {
  FindingKind kind;
  FindingSeverity severity;
  std::string text;       // one line: the path, or the inode's number, and what is wrong
  bool repaired = false;  // done by this call
};

struct FsckReport {
  std::vector<Finding> findings;  // at most kMaximumFindings, in the order they were found
  uint64_t problems = 0;          // all findings, also those not kept
  uint64_t repaired = 0;          // of them
  uint64_t inodes = 0, directories = 0, files = 0, entries = 0, orphans = 0, extents = 0;
  BlockCount mapped_blocks;
  ByteCount verified_bytes;  // read and compared with checksums

  static constexpr size_t kMaximumFindings = 10'000;
  // Nothing was wrong. A repaired store is clean in the next check, not in this one.
  bool clean() const { return problems == 0; }
  // Nothing wrong is left.
  bool sound() const { return problems == repaired; }
};

// Reads the whole catalog (and with verify_data the data), and with `repair` mends it: counts and parents are set
// right; names that lead nowhere, leftovers, and extents that are damaged, out of range or overlapping (of two, the one
// of the older generation) go; what no name leads to gets one in /lost+found; damaged inodes are made anew as far as
// names and extents tell what they were; missing checksums are taken from the data as it lies there. Data whose
// checksum differs stays as it is. Repairs are durable on return. Memory: about 80 bytes an inode and 72 an extent.
// Records of an unknown format count as damaged: a store of a newer weightfs is to be refused before (its superblocks
// say so). Keys of unknown kinds, and unknown facts, are let alone. Errors are those of the catalog alone: what is
// wrong with the store is in the report.
Result<FsckReport> CheckStore(KvStore& catalog, std::span<BlockDevice* const> devices, const FsckOptions& options);

}  // namespace weightfs
