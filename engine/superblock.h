// SPDX-License-Identifier: Apache-2.0
// The superblock of a pool device identifies the device and its store. On-disk layout: docs/FORMAT.md section 2.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/result.h"
#include "common/units.h"
#include "engine/block_device.h"

namespace weightfs {

using Uuid = std::array<uint8_t, 16>;

inline constexpr uint64_t kSuperblockMagic = 0x5346'5448'4749'4557ULL;  // "WEIGHTFS" in disk byte order
inline constexpr uint32_t kFormatVersion = 1;
// The byte offsets of the copies. The data area begins after them.
inline constexpr std::array<uint64_t, 4> kSuperblockOffsets = {0, 512 * kKiB, kMiB, kMiB + 512 * kKiB};
inline constexpr uint64_t kDataOffset = 2 * kMiB;
inline constexpr uint64_t kMinimumDeviceSize = 16 * kMiB;

// One copy, kBlockSize bytes, little-endian.
struct SuperblockRecord {
  uint64_t magic;
  uint32_t version;               // readers refuse a greater version
  uint32_t block_size;            // kBlockSize
  uint64_t compatible;            // kSuperblockReplica, kSuperblockLists; unknown bits: ignore
  uint64_t read_only_compatible;  // unknown bits: mount read-only
  uint64_t incompatible;          // kSuperblockLog; unknown bits: refuse to mount
  Uuid store_id;
  Uuid device_id;
  uint16_t device_index;
  uint16_t device_count;
  uint32_t flags;        // kSuperblockClean
  uint64_t device_size;  // bytes of the device in use, a multiple of block_size
  uint64_t data_offset;  // bytes
  uint64_t sequence;     // the valid copy with the highest value wins
  uint64_t copy_offset;  // offset of this copy: a misplaced copy is invalid
  int64_t created_ns;    // since the epoch
  Uuid owner;            // random, of the last program that opened the store for writing; zeros: none
  uint64_t catalog_sequence;  // the version of the catalog at a clean unmount; zeros: unknown
  uint32_t catalog_chain;
  uint8_t reserved[kBlockSize - 148 - 4];
  uint32_t crc;  // CRC-32C of all bytes before it
};
static_assert(sizeof(SuperblockRecord) == kBlockSize);

inline constexpr uint32_t kSuperblockClean = 1;    // the last mount ended with a clean unmount
inline constexpr uint64_t kSuperblockReplica = 1;  // all writers so far keep the replica of the catalog
inline constexpr uint64_t kSuperblockLists = 2;    // and know roots with lists
inline constexpr uint64_t kSuperblockLog = 1;      // incompatible: the log on the devices has every change

// The content of a superblock, independent of its copies.
struct Superblock {
  Uuid store_id{};
  Uuid device_id{};
  DeviceId device_index;
  uint16_t device_count = 1;
  ByteCount device_size;
  uint64_t sequence = 0;
  int64_t created_ns = 0;
  Uuid owner{};
  bool clean = true;
  bool keeps_replica = true;        // kSuperblockReplica
  bool keeps_lists = true;          // kSuperblockLists
  bool logged = false;              // kSuperblockLog
  uint64_t catalog_sequence = 0;    // with `clean`: the version that the index had stored; 0: unknown
  uint32_t catalog_chain = 0;
  bool read_only_features = false;  // an unknown read_only_compatible bit is set
};

// Reads all copies and returns the valid one with the highest sequence. A copy is valid when its magic, checksum and
// offset are correct. Errors are full lines that name the device: kCorrupt when no copy is valid (states whether the
// magic was found), kInvalid when none is and one belongs to a device that begins elsewhere (in a partition), kIo when
// in addition a copy could not be read, kVersion for a newer version or an unknown incompatible bit, kCorrupt when the
// device is shorter than device_size ("truncated") or a field is invalid.
Result<Superblock> ReadSuperblock(BlockDevice& device);

// Writes all copies with sequence + 1: half of them, Flush, the rest, Flush. Updates `superblock.sequence` even on
// failure, so that a second attempt uses a new number. Clears unknown compatible bits, so that a newer program can tell
// that an older one wrote. Returns kReadOnly when `read_only_features` is set.
Result<void> WriteSuperblock(BlockDevice& device, Superblock& superblock);

// Returns the owner of the copy that ReadSuperblock would take, without its other checks and messages. kCorrupt when no
// copy is valid.
Result<Uuid> ReadOwner(BlockDevice& device);

// Returns a random UUID (version 4).
Uuid NewUuid();
std::string ToString(const Uuid& id);  // 8-4-4-4-12 hexadecimal
std::optional<Uuid> ParseUuid(std::string_view text);

}  // namespace weightfs
