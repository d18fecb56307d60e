// SPDX-License-Identifier: Apache-2.0
// Extents, checksums and blocks.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "meta/keys.h"
#include "store/check/fsck.h"
#include "store/names/acl.h"
#include "tests/unit/store/fsck_rig.h"

namespace weightfs {
namespace {

using Kind = FindingKind;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

TEST_F(Fsck, ImpossibleExtentsAreRemoved) {
  auto [key, extent] = FirstExtent(big_);
  ExtentRecord wrong = extent;
  wrong.device = DeviceId{7};
  SetExtent(big_, 5000, wrong);
  wrong = extent;
  wrong.start = DeviceBlock{1};  // location of the superblock
  SetExtent(big_, 6000, wrong);
  wrong.start = DeviceBlock{32 * kMiB / kBlockSize};
  SetExtent(big_, 7000, wrong);
  wrong.start = DeviceBlock{32 * kMiB / kBlockSize - 1};  // only its end lies outside
  wrong.count = BlockCount{2};
  SetExtent(big_, 7500, wrong);
  wrong = extent;
  wrong.start = DeviceBlock{4000};
  SetExtent(big_, (uint64_t{1} << 48) - 1, wrong);
  kv()[keys::Extent(big_, FileBlock{8000})] = "garbage";
  SetExtent(link_, 0, extent);
  SetExtent(InodeId{5000}, 0, extent);
  ExpectFoundAndRepaired({Kind::kExtentOutside, Kind::kExtentOutside, Kind::kExtentOutside, Kind::kExtentOutside,
                          Kind::kExtentOutside, Kind::kDamagedRecord, Kind::kStrayRecord, Kind::kStrayRecord});
  EXPECT_TRUE(ReadPath("d/big"));
}

TEST_F(Fsck, ExtentsBeyondTheFormattedDeviceSizeAreFound) {
  const ExtentRecord extent = FirstExtent(big_).second;
  Restarted media = Restart(image_);
  BlockDevice* device = media.devices[0].get();
  const auto check = [&](ByteCount size) {
    return CheckStore(*media.kv, {&device, 1}, {.device_sizes = {size}})->clean();
  };
  EXPECT_TRUE(check(options_.device_size));
  EXPECT_FALSE(check(ToBytes(BlockCount{extent.start.value})));
}

TEST_F(Fsck, TheYoungerOfOverlappingExtentsIsKept) {
  const ExtentRecord big = FirstExtent(big_).second, small = FirstExtent(small_).second;
  ExtentRecord young = big;
  young.generation += 10;
  young.count = {1};
  young.start = small.start;
  SetExtent(small_, 0, young);  // same location in the same file
  ExtentRecord old = small;
  old.generation = 0;
  old.flags = kExtentUnwritten;
  SetExtent(small_, 9, old);  // again the location of the young one
  ExpectFoundAndRepaired({Kind::kExtentOverlap});
  EXPECT_EQ(FirstExtent(small_).second, young);
}

TEST_F(Fsck, OverlapsInsideAFileAreFound) {
  ExtentRecord extent = FirstExtent(big_).second;
  ASSERT_GT(extent.count.value, 2u);
  ExtentRecord inner = extent;
  inner.start = DeviceBlock{(32 * kMiB - kMiB) / kBlockSize};
  inner.count = {1};
  inner.generation = extent.generation - 1;
  SetExtent(big_, 1, inner);
  ExpectFoundAndRepaired({Kind::kExtentOverlap});
  EXPECT_EQ(ReadPath("d/big")->size(), 3 * kMiB + 1000);
}

TEST_F(Fsck, MissingChecksumsAreMadeFromTheData) {
  const std::string before = *ReadPath("d/big");
  const KvContent intact = kv();
  kv().erase(keys::Checksums(big_, 0));
  kv()[keys::Checksums(big_, 1)] = "garbage";
  auto checksums = DecodeChecksums(kv()[keys::Checksums(big_, 2)]).value();
  checksums.resize(10);
  kv()[keys::Checksums(big_, 2)] = EncodeChecksums(checksums);
  ExpectFoundAndRepaired({Kind::kMissingChecksums, Kind::kMissingChecksums, Kind::kMissingChecksums});
  EXPECT_EQ(*ReadPath("d/big"), before);
  for (const uint64_t segment : {0, 1, 2}) {
    EXPECT_EQ(kv().at(keys::Checksums(big_, segment)), intact.at(keys::Checksums(big_, segment)));
  }
}

TEST_F(Fsck, StrayChecksumsAndAttributesAreRemoved) {
  kv()[keys::Checksums(InodeId{5000}, 0)] = EncodeChecksums({1, 2});
  kv()[keys::Checksums(directory_, 0)] = EncodeChecksums({1, 2});
  kv()[keys::Checksums(big_, 5000)] = "garbage";
  kv()[keys::Attribute(InodeId{5000}, "user.a")] = "v";
  kv()[keys::Attribute(big_, kAccessAclName)] = "garbage";
  kv()[keys::Attribute(big_, "user.long")] = std::string(65537, 'v');
  ExpectFoundAndRepaired({Kind::kStrayRecord, Kind::kStrayRecord, Kind::kStrayRecord, Kind::kDamagedRecord,
                          Kind::kDamagedRecord, Kind::kDamagedRecord});
  EXPECT_TRUE(kv().contains(keys::Attribute(big_, "user.note")));
}

TEST_F(Fsck, BadBlocksAreReportedByPathAndOffset) {
  const ExtentRecord extent = FirstExtent(big_).second;
  prepare_ = [&](FaultDevice& device) {
    for (const uint64_t block : {3, 4, 9}) device.Corrupt(ToBytes(extent.start + BlockCount{block}));
  };
  EXPECT_TRUE(Check(/*repair=*/false).clean()) << "data is read only where it is asked for";
  const FsckReport report = Check(/*repair=*/true, /*verify=*/true);
  EXPECT_THAT(Kinds(report), UnorderedElementsAreArray({"data mismatch", "data mismatch"}));
  EXPECT_FALSE(report.sound());
  EXPECT_FALSE(report.findings[0].repaired);
  EXPECT_THAT(report.findings[0].text, HasSubstr("/d/big"));
  EXPECT_THAT(report.findings[0].text, HasSubstr("bytes 12288 to 20479"));
  EXPECT_THAT(report.findings[0].text, HasSubstr(fmt::format("byte {}", (extent.start.value + 3) * kBlockSize)));
  EXPECT_THAT(report.findings[1].text, HasSubstr("bytes 36864 to 40959"));
}

TEST_F(Fsck, ATransientReadErrorIsNotReported) {
  prepare_ = [](FaultDevice& device) { device.Fail(FaultDevice::Target::kRead, {.nth = 1}); };
  EXPECT_TRUE(Check(/*repair=*/false, /*verify=*/true).clean());
}

TEST_F(Fsck, UnreadableBlocksAreReported) {
  prepare_ = [](FaultDevice& device) { device.Fail(FaultDevice::Target::kRead, {.nth = 1, .and_later = true}); };
  const FsckReport report = Check(/*repair=*/false, /*verify=*/true);
  EXPECT_THAT(Kinds(report), Contains("data unreadable"));
  EXPECT_FALSE(report.sound());
  EXPECT_EQ(report.verified_bytes, ByteCount{0});
}

}  // namespace
}  // namespace weightfs
