// SPDX-License-Identifier: Apache-2.0
#include "fs/kernel_features.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>

#include <cstring>

#include "common/units.h"

namespace weightfs {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr uint64_t kEverything = ~uint64_t{0};

std::vector<std::byte> InitRequest(uint32_t minor, uint64_t flags, size_t size = 40 + sizeof(fuse_init_in)) {
  fuse_in_header header{};
  header.opcode = FUSE_INIT;
  header.len = static_cast<uint32_t>(size);
  fuse_init_in init{};
  init.major = 7;
  init.minor = minor;
  init.max_readahead = 131072;
  init.flags = static_cast<uint32_t>(flags);
  init.flags2 = static_cast<uint32_t>(flags >> 32);
  std::vector<std::byte> bytes(sizeof(header) + sizeof(init));
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), &init, sizeof(init));
  bytes.resize(size);
  return bytes;
}

UsedFeatures Choose(uint32_t minor, uint64_t flags, const std::vector<std::string>& without = {},
                    uint32_t limit = 256) {
  const KernelOffer offer{7, minor, 0, flags};
  return ChooseFeatures(offer, ParseFeatureMask(without).value(), limit);
}

TEST(KernelOffer, ReadsBothWordsOfFlags) {
  const auto offer = ReadOffer(InitRequest(45, FUSE_INIT_EXT | FUSE_ASYNC_READ | kernel_flag::kDirectIoAllowMmap));
  ASSERT_TRUE(offer.has_value());
  EXPECT_EQ(offer->minor, 45U);
  EXPECT_EQ(offer->flags, FUSE_INIT_EXT | FUSE_ASYNC_READ | kernel_flag::kDirectIoAllowMmap);
}

TEST(KernelOffer, SecondWordMeansNothingWithoutInitExt) {
  const auto offer = ReadOffer(InitRequest(31, FUSE_ASYNC_READ | kernel_flag::kDirectIoAllowMmap));
  ASSERT_TRUE(offer.has_value());
  EXPECT_EQ(offer->flags, uint64_t{FUSE_ASYNC_READ});
}

TEST(KernelOffer, OlderRequestWithoutTheSecondWordIsRead) {
  const auto offer = ReadOffer(InitRequest(31, FUSE_ASYNC_READ, 56));
  ASSERT_TRUE(offer.has_value());
  EXPECT_EQ(offer->flags, uint64_t{FUSE_ASYNC_READ});
}

TEST(KernelOffer, ShortOrOtherRequestsAreRefused) {
  EXPECT_FALSE(ReadOffer(InitRequest(45, 0, 55)).has_value());
  EXPECT_FALSE(ReadOffer({}).has_value());
  auto lookup = InitRequest(45, 0);
  lookup[4] = std::byte{FUSE_LOOKUP};
  EXPECT_FALSE(ReadOffer(lookup).has_value());
}

TEST(MaskOffer, HidesFlagsOfBothWordsAndNothingElse) {
  auto request = InitRequest(45, kEverything);
  MaskOffer(request, ParseFeatureMask({"direct_io_allow_mmap", "async_dio"}).value());
  const auto offer = ReadOffer(request);
  ASSERT_TRUE(offer.has_value());
  EXPECT_EQ(offer->flags, kEverything & ~(kernel_flag::kDirectIoAllowMmap | FUSE_ASYNC_DIO));
  EXPECT_EQ(offer->max_readahead, 131072U);
}

TEST(FeatureMask, UnknownNameIsRefusedWithTheKnownOnes) {
  const auto mask = ParseFeatureMask({"async_dio", "warp_drive"});
  ASSERT_FALSE(mask.has_value());
  EXPECT_EQ(mask.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(mask.error().what, HasSubstr("warp_drive"));
  EXPECT_THAT(mask.error().what, HasSubstr("direct_io_allow_mmap"));
}

TEST(ChooseFeatures, ModernKernelGetsDirectIoWithMappings) {
  const UsedFeatures used = Choose(45, kEverything);
  EXPECT_TRUE(used.direct_io_allow_mmap);
  EXPECT_TRUE(used.parallel_direct_writes);
  EXPECT_EQ(used.max_write, kMiB);
  EXPECT_TRUE(used.flags & kernel_flag::kPosixAcl);
  EXPECT_FALSE(used.flags & kernel_flag::kWritebackCache);
  EXPECT_FALSE(used.flags & (FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS))
      << "the kernel's own locks are right for one machine";
}

TEST(ChooseFeatures, UsesOnlyWhatIsOffered) {
  const UsedFeatures used = Choose(31, FUSE_ASYNC_READ | FUSE_POSIX_ACL);
  EXPECT_EQ(used.flags, uint64_t{FUSE_ASYNC_READ}) << "an ACL needs the daemon to apply the umask";
  EXPECT_FALSE(used.direct_io_allow_mmap);
  EXPECT_FALSE(used.parallel_direct_writes);
  EXPECT_EQ(used.max_write, 128 * kKiB);
}

TEST(ChooseFeatures, PageCacheOpensDoWithoutComparingTimes) {
  EXPECT_TRUE(Choose(45, kEverything).flags & kernel_flag::kAutoInvalidate);
  EXPECT_FALSE(Choose(45, kEverything, {"direct_io_allow_mmap"}).flags & kernel_flag::kAutoInvalidate);
}

TEST(ChooseFeatures, RequestsGrowWithTheKernelsLimitUpToFourMebibytes) {
  EXPECT_EQ(Choose(45, kEverything, {}, 512).max_write, 2 * kMiB);
  EXPECT_EQ(Choose(45, kEverything, {}, 65535).max_write, 4 * kMiB);
  EXPECT_EQ(Choose(45, kEverything, {}, 16).max_write, 64 * kKiB);
  EXPECT_EQ(Choose(45, kEverything, {"max_pages_limit"}, 65535).max_write, kMiB);
  EXPECT_EQ(Choose(45, kEverything, {"max_pages"}, 65535).max_write, 128 * kKiB);
}

TEST(ChooseFeatures, MaskTakesParallelWritesAway) {
  EXPECT_FALSE(Choose(45, kEverything, {"parallel_direct_writes"}).parallel_direct_writes);
  EXPECT_FALSE(Choose(37, kEverything).parallel_direct_writes) << "Linux before 6.2 does not know the open flag";
}

TEST(DescribeFeatures, NamesTheStateOfEach) {
  const KernelOffer offer{7, 45, 0, FUSE_ASYNC_READ | FUSE_ASYNC_DIO | FUSE_WRITEBACK_CACHE};
  const FeatureMask mask = ParseFeatureMask({"async_dio"}).value();
  const auto lines = DescribeFeatures(offer, ChooseFeatures(offer, mask, 256), mask);
  EXPECT_THAT(lines, Contains("protocol: 7.45"));
  EXPECT_THAT(lines, Contains("async_read: used"));
  EXPECT_THAT(lines, Contains("async_dio: masked"));
  EXPECT_THAT(lines, Contains("writeback_cache: offered, not used"));
  EXPECT_THAT(lines, Contains("direct_io_allow_mmap: not offered"));
}

}  // namespace
}  // namespace weightfs
