// SPDX-License-Identifier: Apache-2.0
#include "engine/superblock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>

#include "common/checksum.h"
#include "common/log.h"
#include "tests/support/aligned_memory.h"
#include "tests/support/restart.h"
#include "tests/support/result_asserts.h"

namespace weightfs {
namespace {

using testing::HasSubstr;

constexpr ByteCount kDeviceSize{kMinimumDeviceSize};

Superblock Example() {
  Superblock superblock;
  superblock.store_id.fill(0x11);
  superblock.device_id.fill(0x22);
  superblock.device_index = DeviceId{1};
  superblock.device_count = 3;
  superblock.device_size = kDeviceSize;
  superblock.created_ns = 1'700'000'000'000'000'000;
  superblock.clean = false;
  return superblock;
}

class SuperblockTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(WriteSuperblock(device_, written_).has_value()); }
  void TearDown() override { spdlog::set_level(spdlog::level::info); }

  // Changes one copy and, unless `seal` is false, corrects its checksum.
  void Edit(size_t copy, const std::function<void(SuperblockRecord&)>& change, bool seal = true) {
    const AlignedMemory memory(kBlockSize);
    const ByteOffset offset{kSuperblockOffsets[copy]};
    ASSERT_TRUE(device_.Read(offset, memory.bytes()).has_value());
    SuperblockRecord record;
    std::memcpy(&record, memory.data(), sizeof(record));
    change(record);
    std::memcpy(memory.data(), &record, sizeof(record));
    if (seal) {
      const uint32_t crc = Crc32c(memory.bytes().first(offsetof(SuperblockRecord, crc)));
      std::memcpy(memory.data() + offsetof(SuperblockRecord, crc), &crc, sizeof(crc));
    }
    ASSERT_TRUE(device_.Write(offset, memory.bytes()).has_value());
  }
  void EditAll(const std::function<void(SuperblockRecord&)>& change) {
    for (size_t copy = 0; copy < kSuperblockOffsets.size(); ++copy) Edit(copy, change);
  }
  void Damage(size_t copy) {
    Edit(
        copy, [](SuperblockRecord& record) { record.store_id[3] ^= 1; }, /*seal=*/false);
  }
  void ExpectError(ErrorCode code, const char* words) {
    const auto read = ReadSuperblock(device_);
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code, code);
    EXPECT_THAT(read.error().what, HasSubstr(words));
    EXPECT_THAT(read.error().what, HasSubstr("fault-device"));
  }

  std::shared_ptr<Journal> journal_ = std::make_shared<Journal>();
  FaultDevice device_{journal_, kDeviceSize};
  Superblock written_ = Example();
};

TEST(SuperblockLayoutTest, FieldsLieWhereTheFormatSays) {
  EXPECT_EQ(offsetof(SuperblockRecord, version), 8U);
  EXPECT_EQ(offsetof(SuperblockRecord, compatible), 16U);
  EXPECT_EQ(offsetof(SuperblockRecord, store_id), 40U);
  EXPECT_EQ(offsetof(SuperblockRecord, device_index), 72U);
  EXPECT_EQ(offsetof(SuperblockRecord, device_size), 80U);
  EXPECT_EQ(offsetof(SuperblockRecord, copy_offset), 104U);
  EXPECT_EQ(offsetof(SuperblockRecord, owner), 120U);
  EXPECT_EQ(offsetof(SuperblockRecord, catalog_sequence), 136U);
  EXPECT_EQ(offsetof(SuperblockRecord, reserved), 148U);
  EXPECT_EQ(offsetof(SuperblockRecord, crc), 4092U);
  const uint64_t magic = kSuperblockMagic;
  EXPECT_EQ(std::memcmp(&magic, "WEIGHTFS", 8), 0);
}

TEST_F(SuperblockTest, ReadsBackWhatWasWritten) {
  const auto read = ReadSuperblock(device_);
  ASSERT_TRUE(read.has_value()) << ToString(read.error());
  EXPECT_EQ(read->store_id, written_.store_id);
  EXPECT_EQ(read->device_id, written_.device_id);
  EXPECT_EQ(read->device_index, written_.device_index);
  EXPECT_EQ(read->device_count, 3);
  EXPECT_EQ(read->device_size, kDeviceSize);
  EXPECT_EQ(read->sequence, 1U);
  EXPECT_EQ(read->created_ns, written_.created_ns);
  EXPECT_EQ(read->owner, written_.owner);
  EXPECT_EQ(Must(ReadOwner(device_)), written_.owner);
  EXPECT_FALSE(read->clean);
  EXPECT_TRUE(read->keeps_replica && read->keeps_lists);
  EXPECT_FALSE(read->read_only_features);
}

TEST_F(SuperblockTest, EachWriteTakesTheNextSequence) {
  written_.clean = true;
  ASSERT_TRUE(WriteSuperblock(device_, written_).has_value());
  EXPECT_EQ(written_.sequence, 2U);
  EXPECT_TRUE(ReadSuperblock(device_)->clean);
  EXPECT_EQ(ReadSuperblock(device_)->sequence, 2U);
}

TEST_F(SuperblockTest, OneIntactCopyIsEnough) {
  for (size_t intact = 0; intact < kSuperblockOffsets.size(); ++intact) {
    ASSERT_TRUE(WriteSuperblock(device_, written_).has_value());
    for (size_t copy = 0; copy < kSuperblockOffsets.size(); ++copy) {
      if (copy != intact) Damage(copy);
    }
    const auto read = ReadSuperblock(device_);
    ASSERT_TRUE(read.has_value()) << "only copy " << intact << ": " << ToString(read.error());
    EXPECT_EQ(read->store_id, written_.store_id);
  }
}

TEST_F(SuperblockTest, AFlipOfAnyByteIsNoticed) {
  for (size_t copy = 1; copy < kSuperblockOffsets.size(); ++copy) Damage(copy);
  for (size_t at = 0; at < kBlockSize; at += 13) {
    device_.Corrupt(ByteOffset{at});
    EXPECT_FALSE(ReadSuperblock(device_).has_value()) << "byte " << at;
    device_.Corrupt(ByteOffset{at});  // flip it back
  }
  EXPECT_TRUE(ReadSuperblock(device_).has_value());
}

TEST_F(SuperblockTest, AllCopiesDamagedSaysThatItWasOurs) {
  for (size_t copy = 0; copy < kSuperblockOffsets.size(); ++copy) Damage(copy);
  ExpectError(ErrorCode::kCorrupt, "copies of its superblock are damaged");
}

TEST(SuperblockReadTest, AnEmptyDeviceIsNotOurs) {
  FaultDevice device(std::make_shared<Journal>(), kDeviceSize);
  const auto read = ReadSuperblock(device);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(read.error().what, HasSubstr("not a weightfs device"));
}

TEST(SuperblockReadTest, ADeviceTooShortForOneCopyIsNotOurs) {
  FaultDevice device(std::make_shared<Journal>(), ByteCount{0});
  EXPECT_EQ(ReadSuperblock(device).error().code, ErrorCode::kCorrupt);
}

TEST_F(SuperblockTest, AMisplacedCopyIsNotValid) {
  // The intact bytes of copy 2, with a larger sequence number, at the location of copy 0.
  Edit(0, [](SuperblockRecord& record) {
    record.copy_offset = kSuperblockOffsets[2];
    record.sequence = 99;
    record.device_count = 7;
  });
  const auto read = ReadSuperblock(device_);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->sequence, 1U);
  EXPECT_EQ(read->device_count, 3);
}

TEST_F(SuperblockTest, CopiesOfADeviceThatBeginsElsewhereNameItsBeginning) {
  Damage(0);
  Damage(1);
  Edit(2, [](SuperblockRecord& record) { record.copy_offset = kSuperblockOffsets[0]; });
  Edit(3, [](SuperblockRecord& record) { record.copy_offset = kSuperblockOffsets[1]; });
  ExpectError(ErrorCode::kInvalid, "begins at its byte 1048576");
  EditAll([offset = kMiB](SuperblockRecord& record) mutable {
    record.copy_offset = offset;
    offset += 512 * kKiB;
  });
  ExpectError(ErrorCode::kInvalid, "begins 1048576 bytes before it");
}

TEST_F(SuperblockTest, TheGreatestSequenceWins) {
  Edit(3, [](SuperblockRecord& record) {
    record.sequence = 5;
    record.flags = kSuperblockClean;
  });
  EXPECT_EQ(ReadSuperblock(device_)->sequence, 5U);
  EXPECT_TRUE(ReadSuperblock(device_)->clean);
}

TEST_F(SuperblockTest, ANewerVersionIsRefused) {
  EditAll([](SuperblockRecord& record) { record.version = kFormatVersion + 1; });
  ExpectError(ErrorCode::kVersion, "newer");
}

TEST_F(SuperblockTest, UnknownIncompatibleFeaturesAreRefused) {
  EditAll([](SuperblockRecord& record) { record.incompatible = 0x40; });
  ExpectError(ErrorCode::kVersion, "0x40");
}

TEST_F(SuperblockTest, UnknownReadOnlyFeaturesAllowReadingOnly) {
  EditAll([](SuperblockRecord& record) { record.read_only_compatible = 2; });
  auto read = ReadSuperblock(device_);
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(read->read_only_features);
  EXPECT_EQ(WriteSuperblock(device_, *read).error().code, ErrorCode::kReadOnly);
}

TEST_F(SuperblockTest, UnknownCompatibleFeaturesAreIgnored) {
  EditAll([](SuperblockRecord& record) { record.compatible = ~0ULL; });
  const auto read = ReadSuperblock(device_);
  ASSERT_TRUE(read.has_value());
  EXPECT_FALSE(read->read_only_features);
}

TEST_F(SuperblockTest, ImpossibleFieldsAreRefused) {
  const std::vector<std::function<void(SuperblockRecord&)>> changes = {
      [](SuperblockRecord& record) { record.version = 0; },
      [](SuperblockRecord& record) { record.block_size = 512; },
      [](SuperblockRecord& record) { record.data_offset = 0; },
      [](SuperblockRecord& record) { record.device_index = record.device_count; },
      [](SuperblockRecord& record) { record.device_size += 1; },
      [](SuperblockRecord& record) { record.device_size = kBlockSize; },
      [](SuperblockRecord& record) { record.sequence = UINT64_MAX; },  // no write could follow it
  };
  for (const auto& change : changes) {
    ASSERT_TRUE(WriteSuperblock(device_, written_).has_value());
    EditAll(change);
    ExpectError(ErrorCode::kCorrupt, "impossible superblock");
  }
}

TEST_F(SuperblockTest, ATruncatedDeviceIsRefused) {
  written_.device_size = ByteCount{kDeviceSize.value + kBlockSize};
  ASSERT_TRUE(WriteSuperblock(device_, written_).has_value());
  ExpectError(ErrorCode::kCorrupt, "truncated");
}

TEST_F(SuperblockTest, AnUnreadableCopyIsSkipped) {
  device_.Fail(FaultDevice::Target::kRead, {});
  EXPECT_TRUE(ReadSuperblock(device_).has_value());
}

TEST_F(SuperblockTest, ADeviceThatCannotBeReadIsAnIoError) {
  device_.Fail(FaultDevice::Target::kRead, {.and_later = true});
  ExpectError(ErrorCode::kIo, "no superblock could be read");
}

TEST_F(SuperblockTest, AFailedWriteOrFlushIsReportedAndItsNumberIsNotUsedAgain) {
  device_.Fail(FaultDevice::Target::kSynchronousWrite, {.nth = 3});
  EXPECT_FALSE(WriteSuperblock(device_, written_).has_value());
  EXPECT_EQ(written_.sequence, 2U);
  device_.Fail(FaultDevice::Target::kFlush, {.nth = 1});
  EXPECT_FALSE(WriteSuperblock(device_, written_).has_value());
  EXPECT_EQ(written_.sequence, 3U);
  ASSERT_TRUE(WriteSuperblock(device_, written_).has_value());
  EXPECT_EQ(ReadSuperblock(device_)->sequence, 4U);
}

TEST_F(SuperblockTest, APowerLossAnywhereShowsTheOldOrTheNewOne) {
  const size_t before = journal_->size();
  written_.clean = true;
  ASSERT_TRUE(WriteSuperblock(device_, written_).has_value());
  spdlog::set_level(spdlog::level::off);  // silence thousands of damaged copies
  std::set<uint64_t> seen;
  for (size_t cut = before; cut <= journal_->size(); ++cut) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      CrashOptions options{.seed = seed};
      // A copy is lost by tearing, not by dropping, so in half of the images all writes reach the device.
      if (seed % 2 == 0) options.device_survival = 1.0;
      const Restarted restarted = Restart(journal_->ImageAt(cut, options));
      const auto read = ReadSuperblock(*restarted.devices[0]);
      ASSERT_TRUE(read.has_value()) << "cut " << cut << " seed " << seed << ": " << ToString(read.error());
      EXPECT_EQ(read->clean, read->sequence == 2);
      seen.insert(read->sequence);
      EXPECT_TRUE(cut < journal_->size() || read->sequence == 2) << "it was acknowledged";
    }
  }
  EXPECT_THAT(seen, testing::ElementsAre(1, 2));
}

TEST(UuidTest, NewOnesDifferAndAreOfVersion4) {
  const Uuid one = NewUuid();
  EXPECT_NE(one, NewUuid());
  EXPECT_EQ(one[6] >> 4, 4);
  EXPECT_EQ(one[8] >> 6, 2);
}

TEST(UuidTest, TextRoundTrips) {
  const std::string text = "01234567-89ab-cdef-0123-456789abcdef";
  const auto id = ParseUuid(text);
  ASSERT_TRUE(id.has_value());
  EXPECT_EQ((*id)[0], 0x01);
  EXPECT_EQ((*id)[15], 0xef);
  EXPECT_EQ(ToString(*id), text);
  EXPECT_EQ(ParseUuid("01234567-89AB-CDEF-0123-456789ABCDEF"), id);
}

TEST(UuidTest, AnythingElseIsNotAUuid) {
  for (const char* text : {"", "0123456789abcdef0123456789abcdef", "01234567-89ab-cdef-0123-456789abcde",
                           "01234567-89ab-cdef-0123-456789abcdeg", "01234567-89ab-cdef-0123-456789abcdef0",
                           "01234567089ab-cdef-0123-456789abcdef", "0123456--89ab-cdef-0123-456789abcdef"}) {
    EXPECT_FALSE(ParseUuid(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace weightfs
