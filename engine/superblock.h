// SPDX-License-Identifier: Apache-2.0
// The superblock of a pool device, which names the device and its store. On-disk layout; docs/FORMAT.md section 2.
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

inline constexpr uint64_t kSuperblockMagic = 0x5346'5448'4749'4557ULL;  // "WEIGHTFS" as it lies on disk
inline constexpr uint32_t kFormatVersion = 1;
// Copies lie at these byte offsets; the data area begins behind them.
inline constexpr std::array<uint64_t, 4> kSuperblockOffsets = {0, 512 * kKiB, kMiB, kMiB + 512 * kKiB};
inline constexpr uint64_t kDataOffset = 2 * kMiB;
inline constexpr uint64_t kMinimumDeviceSize = 16 * kMiB;

// One copy, kBlockSize bytes, little-endian.
struct SuperblockRecord {
  uint64_t magic;
  uint32_t version;               // readers refuse a greater one
  uint32_t block_size;            // kBlockSize
  uint64_t compatible;            // feature bits that may be ignored
  uint64_t read_only_compatible;  // unknown bits: mount read-only at most
  uint64_t incompatible;          // unknown bits: refuse
  uint8_t store_id[16];
  uint8_t device_id[16];
  uint16_t device_index;
  uint16_t device_count;
  uint32_t flags;        // kSuperblockClean
  uint64_t device_size;  // bytes used of the device, a multiple of block_size
  uint64_t data_offset;  // bytes
  uint64_t sequence;     // the greatest valid copy wins
  uint64_t copy_offset;  // where this copy lies: a misplaced copy is not valid
  int64_t created_ns;    // since the epoch
  uint8_t reserved[kBlockSize - 120 - 4];
  uint32_t crc;  // CRC-32C of all bytes before it
};
static_assert(sizeof(SuperblockRecord) == kBlockSize);

inline constexpr uint32_t kSuperblockClean = 1;  // the last mount ended by a clean unmount

// The facts of a superblock, without its copies.
struct Superblock {
  Uuid store_id{};
  Uuid device_id{};
  DeviceId device_index;
  uint16_t device_count = 1;
  ByteCount device_size;
  uint64_t sequence = 0;
  int64_t created_ns = 0;
  bool clean = true;
  bool read_only_features = false;  // an unknown read_only_compatible bit is set
};

// Reads all copies and returns the valid one of the greatest sequence; a copy is valid when its magic, checksum and
// place are right. Full-line errors naming the device: kCorrupt when no copy is valid (says whether the magic was
// seen), kIo when in addition a copy could not be read, kVersion for a newer version or an unknown incompatible bit,
// kCorrupt when the device is shorter than device_size ("truncated") or a field is impossible.
Result<Superblock> ReadSuperblock(BlockDevice& device);

// Writes all copies with sequence + 1: half of them, Flush, the rest, Flush. Updates `superblock.sequence`, also when
// it fails: a second attempt takes a number of its own. Unknown compatible bits are cleared, which tells a newer
// program that an older one wrote. kReadOnly when `read_only_features` is set.
Result<void> WriteSuperblock(BlockDevice& device, Superblock& superblock);

// Random (version 4).
Uuid NewUuid();
std::string ToString(const Uuid& id);  // 8-4-4-4-12 hexadecimal
std::optional<Uuid> ParseUuid(std::string_view text);

}  // namespace weightfs
