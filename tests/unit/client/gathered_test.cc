// SPDX-License-Identifier: Apache-2.0
// Handle::ReadRanges, on files of any filesystem and through leases.
#include "client/plan/gathered.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <random>
#include <tuple>

#include "client/handle.h"
#include "common/units.h"
#include "tests/support/kernel_hooks.h"
#include "tests/unit/client/fake_lease_mount.h"
#include "tests/unit/client/fake_target.h"
#include "tests/unit/client/operations.h"

namespace weightfs::client {
namespace {

using Ranges = std::vector<ByteRange>;

uint64_t TotalOf(const Ranges& ranges) {
  uint64_t total = 0;
  for (const auto& range : ranges) total += range.size;
  return total;
}

Bytes Expected(const Bytes& content, const Ranges& ranges) {
  Bytes bytes;
  for (const auto& range : ranges) {
    const auto begin = content.begin() + static_cast<long>(range.offset);
    bytes.insert(bytes.end(), begin, begin + static_cast<long>(range.size));
  }
  return bytes;
}

Ranges RandomRanges(std::mt19937_64& random, uint64_t size) {
  const uint64_t longest = uint64_t{1} << (random() % 19);
  Ranges ranges;
  for (uint64_t at = random() % longest; at < size;) {
    const uint64_t length = std::min(random() % longest, size - at);
    ranges.push_back({at, length});
    at += length + random() % 3 * (random() % longest);
    if (length == 0) ++at;
  }
  return ranges;
}

class GatheredTest : public KernelHooksTest, public testing::WithParamInterface<Direct> {
 protected:
  std::unique_ptr<Handle> Make(HandleOptions options = {}) const {
    options.direct = GetParam();
    return std::move(Handle::Create(options).value());
  }

  FakeLeaseMount mount_;
};

TEST_P(GatheredTest, RandomRangesHaveTheBytesOfTheFile) {
  Bytes content = RandomBytes(1'500'123, 3);
  std::fill_n(content.begin() + 400'000, 200'000, std::byte{0});  // the fake mount leases this as a hole
  WriteFile(mount_ / "file", content);
  mount_.extent_blocks = 7;
  std::mt19937_64 random(5);
  const auto handle = Make({.block_size = 65536, .queue_depth = 8, .intra_op_parallelism = 2});
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    const Ranges ranges = RandomRanges(random, content.size());
    Bytes found(TotalOf(ranges), std::byte{0x5a});
    const auto read = handle->ReadRanges(mount_ / "file", ranges, View(found));
    ASSERT_TRUE(read.has_value()) << read.error().what;
    ASSERT_TRUE(found == Expected(content, ranges));
  }
}

TEST_P(GatheredTest, AReadBehindTheEndFails) {
  WriteFile(mount_ / "file", RandomBytes(100'000));
  Bytes found(200);
  const Ranges ranges{{0, 100}, {99'901, 100}};
  const auto read = Make()->ReadRanges(mount_ / "file", ranges, View(found));
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().error_number(), ENODATA);
  EXPECT_EQ(read.error().path, mount_ / "file");
}

TEST_P(GatheredTest, RangesThatDoNotAscendOrDoNotFitAreRejected) {
  WriteFile(mount_ / "file", RandomBytes(100'000));
  const auto handle = Make();
  Bytes found(200);
  for (const Ranges& ranges : {Ranges{{500, 100}, {0, 100}}, Ranges{{0, 100}, {99, 100}}, Ranges{{0, 100}},
                               Ranges{{0, 100}, {500, 101}}, Ranges{{UINT64_MAX, 200}}, Ranges{}}) {
    const auto read = handle->ReadRanges(mount_ / "file", ranges, View(found));
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().error_number(), EINVAL);
    EXPECT_EQ(read.error().path, mount_ / "file");
  }
  EXPECT_TRUE(handle->ReadRanges(mount_ / "file", Ranges{{5, 0}}, MemoryView()).has_value());
}

TEST_P(GatheredTest, AReadWaitsForAnEarlierWriteOfTheHandle) {
  const auto handle = Make();
  Bytes written = RandomBytes(9 << 20);
  const auto operation = handle->StartWrite(mount_ / "file", View(written)).value();
  const Ranges ranges{{10, 5000}, {8 << 20, 70'000}};
  Bytes found(TotalOf(ranges));
  const auto read = handle->ReadRanges(mount_ / "file", ranges, View(found));
  ASSERT_TRUE(read.has_value()) << read.error().what;
  EXPECT_TRUE(operation->done());
  EXPECT_TRUE(found == Expected(written, ranges));
}

INSTANTIATE_TEST_SUITE_P(Ways, GatheredTest, testing::Values(Direct::kNever, Direct::kAuto, Direct::kRequire),
                         [](const auto& way) {
                           return way.param == Direct::kNever  ? "Plain"
                                  : way.param == Direct::kAuto ? "Auto"
                                                               : "Leased";
                         });

class GatheredLeaseTest : public KernelHooksTest {
 protected:
  FakeLeaseMount mount_;
};

TEST_F(GatheredLeaseTest, AllRangesTakeOneLease) {
  const Bytes content = RandomBytes(8 << 20);
  WriteFile(mount_ / "file", content);
  Ranges ranges;
  for (uint64_t at = 100; at < content.size(); at += 50'000) ranges.push_back({at, 1000});
  Bytes found(TotalOf(ranges));
  const auto handle = std::move(Handle::Create({}).value());
  ASSERT_TRUE(handle->ReadRanges(mount_ / "file", ranges, View(found)).has_value());
  EXPECT_TRUE(found == Expected(content, ranges));
  EXPECT_EQ(mount_.requests(lease::Kind::kRead), 1U);
  EXPECT_EQ(handle->direct_operations(), 1U);
  mount_.WaitForNoLease();
}

TEST_F(GatheredLeaseTest, DamageIsReportedAtItsOffsetInTheFile) {
  WriteFile(mount_ / "file", RandomBytes(8 << 20));
  const uint64_t damaged = 5 << 20;
  mount_.extent_blocks = 1;
  mount_.on_laid_out = [&](const std::vector<lease::Extent>& extents) {
    for (const auto& extent : extents) {
      if (extent.file_block != damaged / kBlockSize) continue;
      const UniqueFd device(open(mount_.device().c_str(), O_WRONLY));
      ASSERT_EQ(pwrite(device.get(), "wrong", 5, static_cast<off_t>(extent.device_block * kBlockSize)), 5);
      ASSERT_EQ(fdatasync(device.get()), 0);
    }
  };
  const auto handle = std::move(Handle::Create({}).value());
  Bytes found(300);
  const auto read =
      handle->ReadRanges(mount_ / "file", Ranges{{0, 100}, {damaged + 10, 100}, {7 << 20, 100}}, View(found));
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().error_number(), EIO);
  EXPECT_EQ(read.error().offset, damaged);
}

TEST(GatheredBlocksTest, OnlyTheBlocksOfTheRangesAndShortGapsAreRead) {
  Bytes memory(400);
  const uint64_t far = 5000 + 2 * GatheredBlocks::kNearby;
  const auto blocks = GatheredBlocks::Create(Ranges{{10, 100}, {5000, 100}, {far, 100}, {1 << 20, 100}}, View(memory));
  ASSERT_TRUE(blocks.has_value());
  EXPECT_EQ(blocks->begin, 10U);
  EXPECT_EQ(blocks->end, (1U << 20) + 100);
  ASSERT_EQ(blocks->parts.size(), 3U);
  EXPECT_EQ(blocks->parts[0].length, 2 * kBlockSize);
  EXPECT_EQ(blocks->parts[1].at, 2 * kBlockSize);
  EXPECT_EQ(blocks->parts[1].offset, RoundDown(far, kBlockSize));
  EXPECT_EQ(blocks->parts[2].offset, 1U << 20);
  EXPECT_EQ(blocks->memory.size(), blocks->parts[2].at + 100 - 10);
}

TEST(GatheredLayoutTest, EveryOffsetIsFoundInItsPart) {
  TargetFacts facts;
  const FakeTarget file(facts);
  const GatheredLayout layout(file, {{0, 9000, 100}, {100, 500, 100}, {200, 7, 1}, {201, 70'000, 5000}});
  for (const auto& [offset, in_file, left] :
       {std::tuple(0, 9000, 100), {99, 9099, 1}, {100, 500, 100}, {199, 599, 1}, {200, 7, 1}, {201, 70'000, 5000}}) {
    EXPECT_EQ(layout.FileOffset(offset), static_cast<uint64_t>(in_file));
    EXPECT_EQ(layout.Locate(offset, 1 << 20).offset, static_cast<uint64_t>(in_file));
    EXPECT_EQ(layout.Locate(offset, 1 << 20).length, static_cast<uint64_t>(left));
  }
}

}  // namespace
}  // namespace weightfs::client
