// SPDX-License-Identifier: Apache-2.0
#include "meta/records.h"

#include <sys/stat.h>

#include <ctime>
#include <limits>
#include <span>

#include "common/assert.h"
#include "common/bytes.h"
#include "common/checksum.h"
#include "meta/keys.h"

namespace weightfs {
namespace {

// The current format byte of each kind of record. A change of one kind's layout increments its own byte.
constexpr uint8_t kInodeFormat = 1;
constexpr uint8_t kPublishedInodeFormat = 2;  // the same layout; older programs must not change such an inode
constexpr uint8_t kPublicationFormat = 1;
constexpr uint8_t kEntryFormat = 1;
constexpr uint8_t kExtentFormat = 1;
constexpr uint8_t kChecksumsFormat = 1;

constexpr size_t kInodeFixedSize = 119;  // everything except the symlink target
constexpr size_t kEntrySize = 10;
constexpr size_t kExtentSize = 31;
constexpr size_t kChecksumsHeaderSize = 3;
constexpr size_t kMaximumSymlinkSize = 4095;

// Sizes and offsets are signed 64-bit values in all interfaces (off_t), so nothing on disk may exceed that.
constexpr uint64_t kMaximumSize = std::numeric_limits<int64_t>::max();
constexpr uint64_t kMaximumBlocks = kMaximumSize / kBlockSize;

constexpr uint32_t kKnownInodeFlags = kInodeHasAttributes | kInodeUnnamed | kInodePublished;
constexpr uint32_t kKnownExtentFlags = kExtentUnwritten | kExtentShared;
constexpr uint32_t kNanosecondsPerSecond = 1'000'000'000;
constexpr unsigned kTypeShift = 12;  // from S_IFMT bits to a one-byte type as in d_type
static_assert(S_IFMT == 0xFU << kTypeShift);

bool IsFileType(uint32_t type) {
  switch (type) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
    case S_IFCHR:
    case S_IFBLK:
    case S_IFIFO:
    case S_IFSOCK: return true;
    default: return false;
  }
}

// Consumes the format byte and returns it. The rest of a record of a newer format cannot be decoded, not even its
// checksum.
Result<uint8_t> TakeFormat(Decoder& decoder, uint8_t known) {
  const auto format = decoder.Little<uint8_t>();
  if (!decoder.ok() || format == 0) return ErrorCode::kCorrupt;
  if (format > known) return ErrorCode::kVersion;
  return format;
}

// These functions state the layouts for both directions (common/bytes.h), without the format.
template <typename Coder, typename Record>
void CodeInode(Coder&& coder, Record& record) {
  coder.Fields(record.mode, record.uid, record.gid, record.links, record.device_major, record.device_minor,
               record.flags);
  coder.Fields(record.generation, record.size, record.blocks, record.data_version, record.parent);
  for (auto* time : {&record.accessed, &record.modified, &record.changed, &record.created}) {
    coder.Fields(time->seconds, time->nanoseconds);
  }
}

template <typename Coder, typename Record>
void CodePublication(Coder&& coder, Record& record) {
  coder.Fields(record.version, record.id, record.time.seconds, record.time.nanoseconds, record.files, record.bytes);
}

template <typename Coder, typename Record>
void CodeExtent(Coder&& coder, Record& record) {
  coder.Fields(record.device.value, record.start.value);
  coder.template FieldAs<uint32_t>(record.count.value);
  coder.Fields(record.flags, record.generation);
}

bool IsPossible(Timestamp time) { return time.nanoseconds < kNanosecondsPerSecond; }

bool IsPossible(const InodeRecord& record) {
  const uint32_t type = record.mode & S_IFMT;
  const bool is_link = type == S_IFLNK;
  return (record.mode & ~(S_IFMT | 07777U)) == 0 && IsFileType(type) && (record.flags & ~kKnownInodeFlags) == 0 &&
         record.size <= kMaximumSize && record.blocks <= kMaximumBlocks && IsPossible(record.accessed) &&
         IsPossible(record.modified) && IsPossible(record.changed) && IsPossible(record.created) &&
         record.symlink.empty() != is_link && record.symlink.find('\0') == std::string::npos;
}

// True when the end of `count` blocks from `first` is a valid file or device offset.
bool FitsOffsets(uint64_t first, uint64_t count) { return first <= kMaximumBlocks && count <= kMaximumBlocks - first; }

uint32_t CrcOf(std::string_view key, std::string_view value) {
  return Crc32cExtend(Crc32c(std::as_bytes(std::span(key))), std::as_bytes(std::span(value)));
}

constexpr uint8_t kFactFormat = 1;

}  // namespace

Timestamp Timestamp::Now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return {now.tv_sec, static_cast<uint32_t>(now.tv_nsec)};
}

std::string InodeRecord::Encode() const {
  WEIGHTFS_ASSERT(symlink.size() <= kMaximumSymlinkSize);
  std::string out;
  out.reserve(kInodeFixedSize + symlink.size());
  AppendLittle(out, (flags & kInodePublished) != 0 ? kPublishedInodeFormat : kInodeFormat);
  CodeInode(Encoder(out), *this);
  AppendLittle(out, static_cast<uint16_t>(symlink.size()));
  out.append(symlink);
  return out;
}

Result<InodeRecord> InodeRecord::Decode(std::string_view bytes) {
  Decoder decoder(bytes);
  ASSIGN_OR_RETURN(const uint8_t format, TakeFormat(decoder, kPublishedInodeFormat));
  InodeRecord record;
  CodeInode(decoder, record);
  const auto symlink_size = decoder.Little<uint16_t>();
  if (symlink_size > kMaximumSymlinkSize) return ErrorCode::kCorrupt;
  const std::string_view symlink = decoder.Bytes(symlink_size);
  if (!decoder.Done()) return ErrorCode::kCorrupt;
  record.symlink = symlink;
  const bool published = (record.flags & kInodePublished) != 0;
  if (!IsPossible(record) || published != (format == kPublishedInodeFormat)) return ErrorCode::kCorrupt;
  return record;
}

std::string PublicationRecord::Encode() const {
  std::string out;
  AppendLittle(out, kPublicationFormat);
  CodePublication(Encoder(out), *this);
  return out;
}

Result<PublicationRecord> PublicationRecord::Decode(std::string_view encoded) {
  Decoder decoder(encoded);
  RETURN_IF_ERROR(TakeFormat(decoder, kPublicationFormat));
  PublicationRecord record;
  CodePublication(decoder, record);
  if (!decoder.Done() || record.version == 0 || record.version > kMaximumVersion || !IsPossible(record.time))
    return ErrorCode::kCorrupt;
  return record;
}

std::string EntryRecord::Encode() const {
  std::string out;
  out.reserve(kEntrySize);
  AppendLittle(out, kEntryFormat);
  AppendLittle(out, ino.value);
  AppendLittle(out, static_cast<uint8_t>((type & S_IFMT) >> kTypeShift));
  return out;
}

Result<EntryRecord> EntryRecord::Decode(std::string_view bytes) {
  Decoder decoder(bytes);
  RETURN_IF_ERROR(TakeFormat(decoder, kEntryFormat));
  EntryRecord record;
  record.ino.value = decoder.Little<uint64_t>();
  record.type = static_cast<uint32_t>(decoder.Little<uint8_t>()) << kTypeShift;
  if (!decoder.Done() || record.ino.value == 0 || !IsFileType(record.type)) return ErrorCode::kCorrupt;
  return record;
}

std::string ExtentRecord::Encode(std::string_view key) const {
  WEIGHTFS_ASSERT(count.value > 0 && count.value <= kMaximumExtentBlocks);
  std::string out;
  out.reserve(kExtentSize);
  AppendLittle(out, kExtentFormat);
  CodeExtent(Encoder(out), *this);
  AppendLittle(out, CrcOf(key, out));
  return out;
}

Result<ExtentRecord> ExtentRecord::Decode(std::string_view key, std::string_view bytes) {
  Decoder decoder(bytes);
  RETURN_IF_ERROR(TakeFormat(decoder, kExtentFormat));
  ExtentRecord record;
  CodeExtent(decoder, record);
  const auto crc = decoder.Little<uint32_t>();
  if (!decoder.Done() || crc != CrcOf(key, bytes.substr(0, bytes.size() - sizeof(crc)))) return ErrorCode::kCorrupt;

  const auto place = keys::ParseIndexed(key);
  if (!place || key[0] != keys::kExtent) return ErrorCode::kCorrupt;
  if (record.count.value == 0 || record.count.value > kMaximumExtentBlocks) return ErrorCode::kCorrupt;
  if (!FitsOffsets(place->index, record.count.value) || !FitsOffsets(record.start.value, record.count.value) ||
      (record.flags & ~kKnownExtentFlags) != 0) {
    return ErrorCode::kCorrupt;
  }
  return record;
}

std::string EncodeChecksums(const std::vector<uint32_t>& checksums) {
  WEIGHTFS_ASSERT(checksums.size() <= keys::kSegmentBlocks);
  std::string out;
  out.reserve(kChecksumsHeaderSize + checksums.size() * sizeof(uint32_t));
  AppendLittle(out, kChecksumsFormat);
  AppendLittle(out, static_cast<uint16_t>(checksums.size()));
  for (const uint32_t checksum : checksums) AppendLittle(out, checksum);
  return out;
}

Result<std::vector<uint32_t>> DecodeChecksums(std::string_view bytes) {
  Decoder decoder(bytes);
  RETURN_IF_ERROR(TakeFormat(decoder, kChecksumsFormat));
  const auto count = decoder.Little<uint16_t>();
  if (!decoder.ok() || count > keys::kSegmentBlocks) return ErrorCode::kCorrupt;
  const std::string_view words = decoder.Bytes(count * sizeof(uint32_t));
  if (!decoder.Done()) return ErrorCode::kCorrupt;
  std::vector<uint32_t> checksums(count);
  if (count != 0) std::memcpy(checksums.data(), words.data(), words.size());
  return checksums;
}

std::string EncodeFact(uint64_t number) {
  std::string bytes;
  AppendLittle(bytes, kFactFormat);
  AppendLittle(bytes, number);
  return bytes;
}

Result<uint64_t> DecodeFact(std::string_view bytes) {
  Decoder decoder(bytes);
  const auto format = decoder.Little<uint8_t>();
  if (decoder.ok() && format > kFactFormat) return ErrorCode::kVersion;
  const auto number = decoder.Little<uint64_t>();
  if (!decoder.Done() || format != kFactFormat) return ErrorCode::kCorrupt;
  return number;
}

Result<std::optional<uint64_t>> ReadFact(KvStore& catalog, std::string_view name) {
  ASSIGN_OR_RETURN(const auto bytes, catalog.Get(keys::Store(name)));
  if (!bytes) return std::optional<uint64_t>();
  ASSIGN_OR_RETURN(const uint64_t number, DecodeFact(*bytes));
  return std::optional<uint64_t>(number);
}

}  // namespace weightfs
