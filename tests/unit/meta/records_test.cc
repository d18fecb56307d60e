// SPDX-License-Identifier: Apache-2.0
#include "meta/records.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <limits>

#include "common/bytes.h"
#include "common/checksum.h"
#include "meta/keys.h"

namespace weightfs {
namespace {

InodeRecord FileRecord() {
  InodeRecord record;
  record.mode = S_IFREG | 0644;
  record.uid = 1000;
  record.gid = 100;
  record.links = 2;
  record.flags = kInodeHasAttributes;
  record.generation = 5;
  record.size = 10'000'000'001;
  record.blocks = 2'441'407;
  record.data_version = 9;
  record.accessed = {1'700'000'000, 1};
  record.modified = {-1, 999'999'999};
  record.changed = {1'700'000'002, 3};
  record.created = {std::numeric_limits<int64_t>::min(), 0};
  return record;
}

InodeRecord LinkRecord() {
  InodeRecord record;
  record.mode = S_IFLNK | 0777;
  record.links = 1;
  record.symlink = "../checkpoints/latest";
  record.size = record.symlink.size();
  return record;
}

const std::string kExtentKey = keys::Extent(InodeId{42}, FileBlock{512});

ExtentRecord SomeExtent() {
  ExtentRecord record;
  record.device = DeviceId{1};
  record.start = DeviceBlock{1024};
  record.count = BlockCount{kMaximumExtentBlocks};
  record.flags = kExtentUnwritten;
  record.generation = 7;
  return record;
}

// Recomputes the checksum of an extent record, so that the other checks are reached.
std::string Resealed(std::string value, std::string_view key = kExtentKey) {
  value.resize(value.size() - sizeof(uint32_t));
  const uint32_t crc = Crc32cExtend(Crc32c(std::as_bytes(std::span(key))), std::as_bytes(std::span(value)));
  AppendLittle(value, crc);
  return value;
}

std::string ResealedExtent(const ExtentRecord& record, std::string_view key = kExtentKey) {
  std::string value;
  AppendLittle(value, uint8_t{1});
  AppendLittle(value, record.device.value);
  AppendLittle(value, record.start.value);
  AppendLittle(value, static_cast<uint32_t>(record.count.value));
  AppendLittle(value, record.flags);
  AppendLittle(value, record.generation);
  AppendLittle(value, uint32_t{0});
  return Resealed(std::move(value), key);
}

// Decodes an exact-size copy on the heap, so that AddressSanitizer detects a read past the end.
template <typename Decode>
auto DecodeExact(std::string_view bytes, Decode decode) {
  const std::vector<char> exact(bytes.begin(), bytes.end());
  return decode(std::string_view(exact.data(), exact.size()));
}

template <typename Decode>
void ExpectEveryTruncationFails(std::string_view valid, Decode decode) {
  for (size_t size = 0; size < valid.size(); ++size) {
    const auto result = DecodeExact(valid.substr(0, size), decode);
    ASSERT_FALSE(result.has_value()) << "truncated to " << size;
    EXPECT_EQ(result.error().code, ErrorCode::kCorrupt);
  }
  EXPECT_FALSE(DecodeExact(std::string(valid) + '\0', decode).has_value()) << "one byte too many";
}

// For every value of every byte, decoding returns an error or a record that `check` accepts.
template <typename Decode, typename Check>
void ForEveryByteFlip(const std::string& valid, Decode decode, Check check) {
  for (size_t at = 0; at < valid.size(); ++at) {
    for (int change = 1; change < 256; ++change) {
      std::string damaged = valid;
      damaged[at] = static_cast<char>(damaged[at] ^ change);
      auto result = DecodeExact(damaged, decode);
      if (result.has_value()) {
        check(damaged, *result);
      } else {
        EXPECT_TRUE(result.error().code == ErrorCode::kCorrupt ||
                    (at == 0 && result.error().code == ErrorCode::kVersion))
            << "byte " << at << " ^ " << change;
      }
    }
  }
}

TEST(InodeRecordTest, RoundTrips) {
  for (const InodeRecord& record : {FileRecord(), LinkRecord()}) {
    const auto decoded = InodeRecord::Decode(record.Encode());
    ASSERT_TRUE(decoded.has_value());
    EXPECT_EQ(*decoded, record);
  }
}

TEST(InodeRecordTest, EveryFileTypeAndTheLongestLinkRoundTrip) {
  for (const uint32_t type : {S_IFREG, S_IFDIR, S_IFCHR, S_IFBLK, S_IFIFO, S_IFSOCK}) {
    InodeRecord record = FileRecord();
    record.mode = type | 07777;
    record.device_major = 8;
    record.device_minor = 1 << 20;
    record.parent = 1;
    const auto decoded = InodeRecord::Decode(record.Encode());
    ASSERT_TRUE(decoded.has_value());
    EXPECT_EQ(*decoded, record);
  }
  InodeRecord link = LinkRecord();
  link.symlink.assign(4095, 'x');
  const auto decoded = InodeRecord::Decode(link.Encode());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->symlink.size(), 4095U);
}

TEST(InodeRecordTest, TruncationsAreRefused) {
  ExpectEveryTruncationFails(FileRecord().Encode(), InodeRecord::Decode);
  ExpectEveryTruncationFails(LinkRecord().Encode(), InodeRecord::Decode);
}

TEST(InodeRecordTest, DamagedBytesGiveAnErrorOrAPossibleRecord) {
  for (const InodeRecord& record : {FileRecord(), LinkRecord()}) {
    ForEveryByteFlip(record.Encode(), InodeRecord::Decode, [](const std::string& bytes, const InodeRecord& decoded) {
      EXPECT_EQ(decoded.Encode(), bytes);
      EXPECT_LE(decoded.size, static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
      EXPECT_LT(decoded.modified.nanoseconds, 1'000'000'000U);
    });
  }
}

TEST(InodeRecordTest, ImpossibleFieldsAreCorrupt) {
  const auto code_of = [](const std::function<void(InodeRecord&)>& change) {
    InodeRecord record = FileRecord();
    change(record);
    const auto decoded = InodeRecord::Decode(record.Encode());
    return decoded.has_value() ? std::optional<ErrorCode>() : decoded.error().code;
  };
  EXPECT_EQ(code_of([](auto&) {}), std::nullopt);
  EXPECT_EQ(code_of([](auto& record) { record.mode = 0644; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([](auto& record) { record.mode |= 1U << 16; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([](auto& record) { record.flags = 1U << 31; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([](auto& record) { record.size = 1ULL << 63; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([](auto& record) { record.blocks = 1ULL << 51; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([](auto& record) { record.accessed.nanoseconds = 1'000'000'000; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([](auto& record) { record.symlink = "not a link"; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([](auto& record) { record.mode = S_IFLNK | 0777; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([](auto& record) {
              record.mode = S_IFLNK | 0777;
              record.symlink = std::string("a\0b", 3);
            }),
            ErrorCode::kCorrupt);
}

TEST(EntryRecordTest, RoundTripsAndRefusesDamage) {
  const EntryRecord record{InodeId{0x0102030405060708}, S_IFDIR};
  const auto decoded = EntryRecord::Decode(record.Encode());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(*decoded, record);
  ExpectEveryTruncationFails(record.Encode(), EntryRecord::Decode);
  ForEveryByteFlip(record.Encode(), EntryRecord::Decode, [](const std::string& bytes, const EntryRecord& other) {
    EXPECT_EQ(other.Encode(), bytes);
    EXPECT_NE(other.ino.value, 0U);
  });
  EXPECT_FALSE(EntryRecord::Decode(EntryRecord{InodeId{0}, S_IFREG}.Encode()).has_value());
  EXPECT_FALSE(EntryRecord::Decode(EntryRecord{InodeId{1}, 0}.Encode()).has_value());
}

TEST(ExtentRecordTest, RoundTrips) {
  for (const uint64_t count : {uint64_t{1}, uint64_t{512}, kMaximumExtentBlocks}) {
    ExtentRecord record = SomeExtent();
    record.count = BlockCount{count};
    const auto decoded = ExtentRecord::Decode(kExtentKey, record.Encode(kExtentKey));
    ASSERT_TRUE(decoded.has_value());
    EXPECT_EQ(*decoded, record);
  }
}

TEST(ExtentRecordTest, AnyDamageIsFound) {
  const std::string valid = SomeExtent().Encode(kExtentKey);
  const auto decode = [](std::string_view bytes) { return ExtentRecord::Decode(kExtentKey, bytes); };
  ExpectEveryTruncationFails(valid, decode);
  ForEveryByteFlip(valid, decode, [](const std::string&, const ExtentRecord&) { ADD_FAILURE() << "accepted"; });
}

TEST(ExtentRecordTest, ARecordUnderAnotherKeyIsFound) {
  const std::string value = SomeExtent().Encode(kExtentKey);
  EXPECT_FALSE(ExtentRecord::Decode(keys::Extent(InodeId{42}, FileBlock{513}), value).has_value());
  EXPECT_FALSE(ExtentRecord::Decode(keys::Extent(InodeId{43}, FileBlock{512}), value).has_value());
  EXPECT_FALSE(ExtentRecord::Decode("", value).has_value());
  const std::string not_an_extent = keys::Checksums(InodeId{42}, 512);
  EXPECT_FALSE(ExtentRecord::Decode(not_an_extent, ResealedExtent(SomeExtent(), not_an_extent)).has_value());
}

TEST(ExtentRecordTest, ImpossibleRunsAreRefusedDespiteARightChecksum) {
  const auto refused = [](const std::function<void(ExtentRecord&)>& change) {
    ExtentRecord record = SomeExtent();
    change(record);
    return !ExtentRecord::Decode(kExtentKey, ResealedExtent(record)).has_value();
  };
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& record) { record.count = BlockCount{0}; }));
  EXPECT_TRUE(refused([](auto& record) { record.count = BlockCount{kMaximumExtentBlocks + 1}; }));
  EXPECT_TRUE(refused([](auto& record) { record.start = DeviceBlock{std::numeric_limits<uint64_t>::max()}; }));
  EXPECT_TRUE(refused([](auto& record) { record.start = DeviceBlock{(1ULL << 51) - kMaximumExtentBlocks}; }));
  EXPECT_TRUE(refused([](auto& record) { record.flags = 1U << 30; }));
  const std::string far_key = keys::Extent(InodeId{42}, FileBlock{(1ULL << 51) - kMaximumExtentBlocks});
  EXPECT_FALSE(ExtentRecord::Decode(far_key, ResealedExtent(SomeExtent(), far_key)).has_value());
}

TEST(ChecksumsRecordTest, RoundTripsAtEverySize) {
  std::vector<uint32_t> checksums;
  for (uint32_t index = 0; index <= keys::kSegmentBlocks; ++index) {
    const auto decoded = DecodeChecksums(EncodeChecksums(checksums));
    ASSERT_TRUE(decoded.has_value()) << checksums.size();
    EXPECT_EQ(*decoded, checksums);
    checksums.push_back(index * 0x9E3779B9U);
  }
}

TEST(ChecksumsRecordTest, DamageNeverChangesTheShape) {
  const std::vector<uint32_t> checksums = {1, 0xFFFFFFFF, 3};
  const std::string valid = EncodeChecksums(checksums);
  ExpectEveryTruncationFails(valid, DecodeChecksums);
  ForEveryByteFlip(valid, DecodeChecksums, [&](const std::string&, const std::vector<uint32_t>& decoded) {
    EXPECT_EQ(decoded.size(), checksums.size());
  });
}

TEST(ChecksumsRecordTest, MoreThanASegmentIsRefused) {
  std::string bytes;
  AppendLittle(bytes, uint8_t{1});
  AppendLittle(bytes, static_cast<uint16_t>(keys::kSegmentBlocks + 1));
  bytes.append((keys::kSegmentBlocks + 1) * sizeof(uint32_t), '\0');
  EXPECT_FALSE(DecodeChecksums(bytes).has_value());
}

TEST(InodeRecordTest, OnlyFormat2IsPublished) {
  InodeRecord record = FileRecord();
  record.flags |= kInodePublished;
  std::string bytes = record.Encode();
  EXPECT_EQ(bytes[0], 2);
  EXPECT_EQ(InodeRecord::Decode(bytes).value(), record);
  bytes[0] = 1;  // older programs know neither the flag nor the format
  EXPECT_EQ(InodeRecord::Decode(bytes).error().code, ErrorCode::kCorrupt);
  bytes = FileRecord().Encode();
  bytes[0] = 2;
  EXPECT_EQ(InodeRecord::Decode(bytes).error().code, ErrorCode::kCorrupt);
}

TEST(PublicationRecordTest, RoundTripAndImpossibleValues) {
  PublicationRecord record;
  record.version = 20'261'123'183'000;
  for (size_t at = 0; at < record.id.size(); ++at) record.id[at] = static_cast<uint8_t>(16 + at);
  record.time = {1'700'000'000, 5};
  record.files = 12;
  record.bytes = 1ULL << 40;
  const std::string bytes = record.Encode();
  EXPECT_EQ(PublicationRecord::Decode(bytes).value(), record);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(PublicationRecord::Decode(bytes.substr(0, size)).error().code, ErrorCode::kCorrupt) << size;
  }
  EXPECT_FALSE(PublicationRecord::Decode(bytes + '\0'));
  record.version = kMaximumVersion + 1;
  EXPECT_FALSE(PublicationRecord::Decode(record.Encode()));
  record.version = 1;
  record.time.nanoseconds = 1'000'000'000;
  EXPECT_FALSE(PublicationRecord::Decode(record.Encode()));
}

TEST(RecordFormatTest, AGreaterFormatByteIsAVersionErrorWhateverFollows) {
  for (const std::string& bytes : {std::string("\x03"), std::string("\x03garbage"), std::string("\xFF")}) {
    EXPECT_EQ(InodeRecord::Decode(bytes).error().code, ErrorCode::kVersion);
    EXPECT_EQ(PublicationRecord::Decode(bytes).error().code, ErrorCode::kVersion);
    EXPECT_EQ(EntryRecord::Decode(bytes).error().code, ErrorCode::kVersion);
    EXPECT_EQ(ExtentRecord::Decode(kExtentKey, bytes).error().code, ErrorCode::kVersion);
    EXPECT_EQ(DecodeChecksums(bytes).error().code, ErrorCode::kVersion);
  }
  EXPECT_EQ(InodeRecord::Decode(std::string(1, '\0')).error().code, ErrorCode::kCorrupt);
}

TEST(TimestampTest, NowIsAfterThisWasWrittenAndDoesNotGoBack) {
  const Timestamp first = Timestamp::Now();
  const Timestamp second = Timestamp::Now();
  EXPECT_GT(first.seconds, 1'600'000'000);
  EXPECT_LT(first.nanoseconds, 1'000'000'000U);
  EXPECT_LE(first, second);
}

}  // namespace
}  // namespace weightfs
