// SPDX-License-Identifier: Apache-2.0
// Distinct types for quantities that must not be mixed up. A position (offset, block) differs from a distance (byte
// count, block count): position - position = distance.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace weightfs {

// A distance or amount in one unit.
template <typename Tag>
struct Amount {
  uint64_t value = 0;
  constexpr auto operator<=>(const Amount&) const = default;
  constexpr Amount operator+(Amount other) const { return {value + other.value}; }
  constexpr Amount operator-(Amount other) const { return {value - other.value}; }
  constexpr Amount& operator+=(Amount other) {
    value += other.value;
    return *this;
  }
  constexpr Amount& operator-=(Amount other) {
    value -= other.value;
    return *this;
  }
};

// A position in the unit of `A`.
template <typename Tag, typename A>
struct Position {
  uint64_t value = 0;
  constexpr auto operator<=>(const Position&) const = default;
  constexpr Position operator+(A distance) const { return {value + distance.value}; }
  constexpr Position operator-(A distance) const { return {value - distance.value}; }
  constexpr Position& operator+=(A distance) {
    value += distance.value;
    return *this;
  }
  constexpr A operator-(Position other) const { return {value - other.value}; }
};

using ByteCount = Amount<struct ByteTag>;
using BlockCount = Amount<struct BlockTag>;                       // blocks of kBlockSize
using ByteOffset = Position<struct ByteOffsetTag, ByteCount>;     // in a file or on a device
using FileBlock = Position<struct FileBlockTag, BlockCount>;      // block index inside a file
using DeviceBlock = Position<struct DeviceBlockTag, BlockCount>;  // block index on a device

struct InodeId {
  uint64_t value = 0;
  constexpr auto operator<=>(const InodeId&) const = default;
};
struct DeviceId {
  uint16_t value = 0;
  constexpr auto operator<=>(const DeviceId&) const = default;
};

inline constexpr InodeId kRootInode{1};

// The unit of allocation, copy-on-write and checksums.
inline constexpr uint64_t kBlockSize = 4096;
inline constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB, kTiB = 1024 * kGiB;
inline constexpr size_t kPageSize = 4096, kHugePageSize = 2 * kMiB;  // of memory

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr uint64_t RoundDown(uint64_t value, uint64_t unit) { return value / unit * unit; }

constexpr ByteCount ToBytes(BlockCount blocks) { return {blocks.value * kBlockSize}; }
constexpr ByteOffset ToBytes(FileBlock block) { return {block.value * kBlockSize}; }
constexpr ByteOffset ToBytes(DeviceBlock block) { return {block.value * kBlockSize}; }
constexpr BlockCount BlocksFor(ByteCount bytes) { return {(bytes.value + kBlockSize - 1) / kBlockSize}; }

}  // namespace weightfs

template <>
struct std::hash<weightfs::InodeId> {
  size_t operator()(weightfs::InodeId id) const noexcept { return std::hash<uint64_t>()(id.value); }
};
