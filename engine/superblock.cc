// SPDX-License-Identifier: Apache-2.0
#include "engine/superblock.h"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <vector>

#include "common/assert.h"
#include "common/checksum.h"
#include "common/hex.h"
#include "common/log.h"
#include "common/system_calls.h"

namespace weightfs {
namespace {

// The feature bits that this program knows, of those that it must know to write or to read.
constexpr uint64_t kKnownReadOnlyCompatible = 0;
constexpr uint64_t kKnownIncompatible = kSuperblockLog;

constexpr uint64_t kLargestSequence = UINT64_MAX / 2;  // more than any number of writes

// Aligned for direct I/O.
struct alignas(kBlockSize) AlignedRecord : SuperblockRecord {};

std::span<std::byte> BytesOf(AlignedRecord& record) { return std::as_writable_bytes(std::span(&record, 1)); }

uint32_t CrcOf(AlignedRecord& record) { return Crc32c(BytesOf(record).first(offsetof(SuperblockRecord, crc))); }

// The result of reading the copies.
struct Survey {
  std::optional<SuperblockRecord> best;  // the valid copy with the highest sequence
  std::vector<uint64_t> damaged;         // offsets of invalid copies with our magic
  std::optional<int64_t> shift;          // where the device begins to which a copy at another offset belongs
  std::optional<Error> unreadable;       // the first read error
};

Survey ReadCopies(BlockDevice& device) {
  Survey survey;
  for (const uint64_t offset : kSuperblockOffsets) {
    if (device.size().value < offset + kBlockSize) continue;
    AlignedRecord record;
    if (auto read = device.Read(ByteOffset{offset}, BytesOf(record)); !read.has_value()) {
      if (!survey.unreadable) survey.unreadable = std::move(read).error();
      continue;
    }
    if (record.magic != kSuperblockMagic) continue;
    // The magic, the version and the checksum have the same offsets in every version.
    if (record.crc != CrcOf(record)) {
      survey.damaged.push_back(offset);
      continue;
    }
    if (record.copy_offset != offset) {
      survey.shift = static_cast<int64_t>(offset - record.copy_offset);
      continue;
    }
    if (!survey.best || record.sequence > survey.best->sequence) survey.best = record;
  }
  return survey;
}

Error NoValidCopy(const BlockDevice& device, const Survey& survey) {
  if (survey.unreadable) {
    return {ErrorCode::kIo, fmt::format("{}: no superblock could be read: {}; check the device (dmesg)", device.path(),
                                        ToString(*survey.unreadable))};
  }
  if (survey.shift) {
    return {ErrorCode::kInvalid,
            *survey.shift > 0 ? fmt::format("{}: a weightfs device begins at its byte {}, where a partition is or was; "
                                            "name the partition, or restore the partition table",
                                            device.path(), *survey.shift)
                              : fmt::format("{}: a weightfs device begins {} bytes before it; name the whole disk",
                                            device.path(), -*survey.shift)};
  }
  if (!survey.damaged.empty()) {
    return {ErrorCode::kCorrupt, fmt::format("{}: a weightfs device, but all {} copies of its superblock are damaged; "
                                             "'weightfs recover' rebuilds them",
                                             device.path(), kSuperblockOffsets.size())};
  }
  return {ErrorCode::kCorrupt,
          fmt::format("{}: not a weightfs device, or overwritten by another program (no superblock found); check "
                      "the path; 'weightfs recover' rebuilds a superblock",
                      device.path())};
}

// Rejects versions and features that this program does not support.
Result<void> CheckVersion(const BlockDevice& device, const SuperblockRecord& record) {
  if (record.version > kFormatVersion) {
    return Error{ErrorCode::kVersion,
                 fmt::format("{}: format version {} is newer than this program's {}; use a newer weightfs",
                             device.path(), record.version, kFormatVersion)};
  }
  if (const uint64_t unknown = record.incompatible & ~kKnownIncompatible; unknown != 0) {
    return Error{ErrorCode::kVersion,
                 fmt::format("{}: uses features this program does not know (incompatible bits {:#x}); use a newer "
                             "weightfs",
                             device.path(), unknown)};
  }
  return {};
}

// A valid checksum proves that the bytes are as written, not that they are meaningful.
Result<void> CheckFacts(const BlockDevice& device, const SuperblockRecord& record) {
  const auto corrupt = [&](std::string_view what) {
    return Error{ErrorCode::kCorrupt,
                 fmt::format("{}: impossible superblock: {}; restore the device from a copy", device.path(), what)};
  };
  if (record.version == 0) return corrupt("version 0");
  if (record.block_size != kBlockSize) return corrupt(fmt::format("block size {}", record.block_size));
  if (record.data_offset != kDataOffset) return corrupt(fmt::format("data offset {}", record.data_offset));
  if (record.device_index >= record.device_count) {
    return corrupt(fmt::format("device {} of {}", record.device_index, record.device_count));
  }
  if (record.device_size < kMinimumDeviceSize || record.device_size % kBlockSize != 0) {
    return corrupt(fmt::format("device size {}", record.device_size));
  }
  // Each write needs a greater one.
  if (record.sequence > kLargestSequence) return corrupt(fmt::format("sequence {}", record.sequence));
  if (record.device_size > device.size().value) {
    return Error{ErrorCode::kCorrupt,
                 fmt::format("{}: truncated: {} bytes long, {} were formatted; restore its full length", device.path(),
                             device.size().value, record.device_size)};
  }
  return {};
}

// Fills one copy, except its offset and checksum.
void Fill(AlignedRecord& record, const Superblock& superblock) {
  std::memset(static_cast<void*>(&record), 0, sizeof(record));
  record.magic = kSuperblockMagic;
  record.version = kFormatVersion;
  record.block_size = kBlockSize;
  record.store_id = superblock.store_id;
  record.device_id = superblock.device_id;
  record.device_index = superblock.device_index.value;
  record.device_count = superblock.device_count;
  record.flags = superblock.clean ? kSuperblockClean : 0;
  record.compatible |= superblock.keeps_replica ? kSuperblockReplica : 0;
  record.compatible |= superblock.keeps_lists ? kSuperblockLists : 0;
  record.incompatible = superblock.logged ? kSuperblockLog : 0;
  record.device_size = superblock.device_size.value;
  record.data_offset = kDataOffset;
  record.sequence = superblock.sequence;
  record.created_ns = superblock.created_ns;
  record.owner = superblock.owner;
  record.catalog_sequence = superblock.catalog_sequence;
  record.catalog_chain = superblock.catalog_chain;
}

// Positions in "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
constexpr bool IsDash(size_t at) { return at == 8 || at == 13 || at == 18 || at == 23; }
constexpr size_t kUuidTextSize = 36;

}  // namespace

Result<Superblock> ReadSuperblock(BlockDevice& device) {
  const Survey survey = ReadCopies(device);
  if (!survey.best) return NoValidCopy(device, survey);
  const SuperblockRecord& record = *survey.best;
  RETURN_IF_ERROR(CheckVersion(device, record));
  RETURN_IF_ERROR(CheckFacts(device, record));
  for (const uint64_t offset : survey.damaged) {
    spdlog::warn("superblock copy at byte {} of {} is damaged; using another copy", offset, device.path());
  }
  Superblock superblock;
  superblock.store_id = record.store_id;
  superblock.device_id = record.device_id;
  superblock.device_index = DeviceId{record.device_index};
  superblock.device_count = record.device_count;
  superblock.device_size = ByteCount{record.device_size};
  superblock.sequence = record.sequence;
  superblock.created_ns = record.created_ns;
  superblock.owner = record.owner;
  superblock.clean = (record.flags & kSuperblockClean) != 0;
  superblock.keeps_replica = (record.compatible & kSuperblockReplica) != 0;
  superblock.keeps_lists = (record.compatible & kSuperblockLists) != 0;
  superblock.logged = (record.incompatible & kSuperblockLog) != 0;
  superblock.catalog_sequence = record.catalog_sequence;
  superblock.catalog_chain = record.catalog_chain;
  superblock.read_only_features = (record.read_only_compatible & ~kKnownReadOnlyCompatible) != 0;
  return superblock;
}

Result<Uuid> ReadOwner(BlockDevice& device) {
  const Survey survey = ReadCopies(device);
  if (!survey.best) return NoValidCopy(device, survey);
  return survey.best->owner;
}

Result<void> WriteSuperblock(BlockDevice& device, Superblock& superblock) {
  if (superblock.read_only_features) {
    return Error{ErrorCode::kReadOnly, fmt::format("{}: uses features that this program may only read; use a newer "
                                                   "weightfs to write",
                                                   device.path())};
  }
  // Increment before the first write: a copy of a write that failed midway must not share its number with a later one.
  ++superblock.sequence;
  AlignedRecord record;
  Fill(record, superblock);
  // Write the even copies, then the odd ones: a power loss can damage the half being written, but never both.
  for (const size_t half : {0U, 1U}) {
    for (size_t copy = half; copy < kSuperblockOffsets.size(); copy += 2) {
      record.copy_offset = kSuperblockOffsets[copy];
      record.crc = CrcOf(record);
      RETURN_IF_ERROR(device.Write(ByteOffset{record.copy_offset}, BytesOf(record)));
    }
    RETURN_IF_ERROR(device.Flush());
  }
  return {};
}

Uuid NewUuid() {
  Uuid id;
  WEIGHTFS_ASSERT(FillRandom(std::as_writable_bytes(std::span(id))));
  id[6] = static_cast<uint8_t>((id[6] & 0x0F) | 0x40);  // version 4
  id[8] = static_cast<uint8_t>((id[8] & 0x3F) | 0x80);  // RFC 4122 variant
  return id;
}

std::string ToString(const Uuid& id) {
  std::string text;
  for (const char digit : ToHex(id)) {
    if (IsDash(text.size())) text += '-';
    text += digit;
  }
  return text;
}

std::optional<Uuid> ParseUuid(std::string_view text) {
  if (text.size() != kUuidTextSize) return std::nullopt;
  Uuid id{};
  for (size_t at = 0, digits = 0; at < text.size(); ++at) {
    if (IsDash(at) != (text[at] == '-')) return std::nullopt;
    if (IsDash(at)) continue;
    uint8_t digit = 0;
    if (std::from_chars(&text[at], &text[at] + 1, digit, 16).ec != std::errc()) return std::nullopt;
    uint8_t& byte = id[digits++ / 2];
    byte = static_cast<uint8_t>(byte << 4 | digit);
  }
  return id;
}

}  // namespace weightfs
