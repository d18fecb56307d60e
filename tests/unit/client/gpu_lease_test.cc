// SPDX-License-Identifier: Apache-2.0
// GPU memory and a mount that grants leases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "common/units.h"
#include "tests/unit/client/device_bytes.h"
#include "tests/unit/client/fake_lease_mount.h"
#include "tests/unit/client/operations.h"

namespace weightfs::client {
namespace {

using testing::HasSubstr;

class GpuLeaseTest : public GpuTest {
 protected:
  static std::unique_ptr<Handle> Make(GpuMode mode, Direct direct = Direct::kRequire) {
    return std::move(
        Handle::Create(
            {.block_size = 65536, .queue_depth = 8, .intra_op_parallelism = 2, .direct = direct, .gpu = mode})
            .value());
  }

  FakeLeaseMount mount_;
};

// Around blocks, extents and slices, with holes.
TEST_F(GpuLeaseTest, EveryRangeIsReadToTheLastByteAndNoFurther) {
  Bytes content = RandomBytes(1'500'123, 21);
  for (size_t at = 3 * kBlockSize; at + 9 * kBlockSize < content.size(); at += 40 * kBlockSize) {
    std::fill_n(content.begin() + static_cast<long>(at), 7 * kBlockSize, std::byte{0});
  }
  WriteFile(mount_ / "file", content);
  mount_.extent_blocks = 37;
  const auto handle = Make(GpuMode::kOnDemand);
  uint64_t count = 0;
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{12'000}, uint64_t{1'000'001}}) {
    for (const size_t size : {size_t{1}, size_t{4096}, size_t{8193}, size_t{400'000}, content.size() - offset}) {
      SCOPED_TRACE(fmt::format("offset {} size {}", offset, size));
      const Bytes before = RandomBytes(size + 20, 3);
      const DeviceBytes memory(before);
      const auto done = handle->Read(mount_ / "file", memory.Part(10, size), {.offset = offset});
      ASSERT_TRUE(done.has_value()) << done.error().what;
      Bytes expected = before;
      std::copy_n(content.begin() + static_cast<long>(offset), size, expected.begin() + 10);
      ASSERT_TRUE(memory.Get() == expected);
      EXPECT_EQ(handle->direct_operations(), ++count);
    }
  }
  mount_.WaitForNoLease();
}

TEST_F(GpuLeaseTest, EveryWriteReplacesItsBytesAndNoOthers) {
  mount_.extent_blocks = 37;
  const auto handle = Make(GpuMode::kBounce);
  unsigned seed = 0;
  for (const std::optional<uint64_t> offset :
       {std::optional<uint64_t>{}, std::optional<uint64_t>{4096}, std::optional<uint64_t>{70'001}}) {
    for (const size_t size : {size_t{8192}, size_t{12'345}, size_t{1'200'123}}) {
      SCOPED_TRACE(fmt::format("offset {} size {}", offset ? static_cast<int64_t>(*offset) : -1, size));
      const Bytes old = RandomBytes(1'000'000, 7);
      WriteFile(mount_ / "file", old);
      const DeviceBytes memory(RandomBytes(size, ++seed));
      const auto done = handle->Write(mount_ / "file", memory.View(), {.offset = offset});
      ASSERT_TRUE(done.has_value()) << done.error().what;
      ASSERT_TRUE(ReadFile(mount_ / "file") == AfterWrite(old, offset, memory.Get()));
    }
  }
  EXPECT_EQ(handle->direct_operations(), seed);
  mount_.WaitForNoLease();
}

TEST_F(GpuLeaseTest, DamageNeverReachesTheGpu) {
  const Bytes content = RandomBytes(1'000'000, 1);
  WriteFile(mount_ / "file", content);
  mount_.on_laid_out = [&](const std::vector<lease::Extent>& extents) {
    const UniqueFd device(open(mount_.device().c_str(), O_RDWR));
    const auto at = static_cast<off_t>(extents[0].device_block * kBlockSize + 17);
    const char value = static_cast<char>(static_cast<char>(content[17]) ^ 1);
    if (pwrite(device.get(), &value, 1, at) != 1 || fdatasync(device.get()) != 0) std::abort();
  };
  const DeviceBytes memory(RandomBytes(1'000'000, 2));
  const auto read = Make(GpuMode::kBounce)->Read(mount_ / "file", memory.View());
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().error_number(), EIO);
  const Bytes first = RandomBytes(1'000'000, 2);
  const Bytes now = memory.Get();
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + kBlockSize, now.begin()));
}

// The transfer path was chosen before the operation had to wait.
TEST_F(GpuLeaseTest, AHeldWriteKeepsTheTransferPathChosenAtItsStart) {
  const DeviceBytes first(RandomBytes(5'000'000, 1));
  const DeviceBytes second(RandomBytes(5'000'000, 2));
  fake_gpu_set_kinds(kEverywhere);
  const auto handle = Make(GpuMode::kAuto, Direct::kAuto);
  for (int round = 0; round < 5; ++round) {
    for (const DeviceBytes* memory : {&first, &second}) {
      ASSERT_TRUE(handle->StartWrite(mount_ / "file", memory->View()).has_value());
    }
    EXPECT_EQ(handle->Wait().count, 2U);
    EXPECT_TRUE(ReadFile(mount_ / "file") == second.Get());
  }
}

// A GPU operation that waits gets its lease when it begins.
TEST_F(GpuLeaseTest, CufileSeesNoBlocksOfALeaseThatComesLater) {
  Bytes first = RandomBytes(1'000'000, 1);
  const DeviceBytes second(RandomBytes(1'000'000, 2));
  fake_gpu_set_kinds(kEverywhere);
  for (const GpuMode mode : {GpuMode::kAuto, GpuMode::kCufile}) {
    const auto handle = Make(mode);
    StandingWrite standing(*handle, mount_ / "file", first, std::nullopt);
    const auto held = handle->StartWrite(mount_ / "file", second.View());
    standing.LetGo();
    if (mode == GpuMode::kAuto) {
      ASSERT_TRUE(held.has_value()) << held.error().what;
      EXPECT_EQ(handle->Wait().count, 2U);
      EXPECT_TRUE(ReadFile(mount_ / "file") == second.Get());
    } else {
      ASSERT_FALSE(held.has_value());
      EXPECT_EQ(held.error().error_number(), EOPNOTSUPP);
      EXPECT_THAT(held.error().what, HasSubstr("a lease is used"));
    }
  }
  EXPECT_EQ(Counts().cufile_writes, 0U);
}

// The mount verifies with its own checksums: every range, and data written from GPU memory.
TEST_F(GpuLeaseTest, AMountVerifiesAllMemoryAndEveryRange) {
  const DeviceBytes memory(RandomBytes(100'000));
  Bytes host = RandomBytes(100'000, 2);
  const auto handle = Make(GpuMode::kBounce);
  for (const MemoryView& view : {memory.View(), View(host)}) {
    const auto whole = handle->Write(mount_ / "file", view, {.checksum = true});
    ASSERT_TRUE(whole.has_value()) << whole.error().what;
    const auto part = handle->Write(mount_ / "file", view, {.offset = 4096, .checksum = true});
    ASSERT_TRUE(part.has_value()) << part.error().what;
    const auto read = handle->Read(mount_ / "file", view, {.offset = 4096, .verify = true});
    ASSERT_TRUE(read.has_value()) << read.error().what;
  }
}

TEST_F(GpuLeaseTest, CufileIsNotUsedForLeasedBlocks) {
  const DeviceBytes memory(RandomBytes(5'000'000));
  fake_gpu_set_kinds(kEverywhere);
  const auto automatic = Make(GpuMode::kAuto, Direct::kAuto);
  ASSERT_TRUE(automatic->Write(mount_ / "file", memory.View()).has_value());
  EXPECT_EQ(automatic->direct_operations(), 1U);
  EXPECT_EQ(Counts().cufile_writes, 0U);
  EXPECT_TRUE(ReadFile(mount_ / "file") == memory.Get());

  const auto forced = Make(GpuMode::kCufile, Direct::kAuto);
  ASSERT_TRUE(forced->Write(mount_ / "forced", memory.View()).has_value());
  EXPECT_EQ(forced->direct_operations(), 0U);
  EXPECT_GT(Counts().cufile_writes, 0U);
  EXPECT_TRUE(ReadFile(mount_ / "forced") == memory.Get());

  const auto both = Make(GpuMode::kCufile)->Write(mount_ / "both", memory.View());
  ASSERT_FALSE(both.has_value());
  EXPECT_EQ(both.error().error_number(), EOPNOTSUPP);
  EXPECT_THAT(both.error().what, HasSubstr("a lease is used"));
}

TEST_F(GpuLeaseTest, TensorsOfAGpuAreSavedAndLoadedFileByFile) {
  const DeviceBytes first(RandomBytes(100'001, 1));
  const DeviceBytes second(RandomBytes(5'000, 2));
  const std::vector<NamedMemory> files{{"first", first.View()}, {"second", second.View()}};
  const auto handle = Make(GpuMode::kBounce, Direct::kAuto);
  const auto saved = handle->SaveMany(mount_.folder(), files, {.durable = true});
  ASSERT_TRUE(saved.has_value()) << saved.error().what;
  EXPECT_TRUE(ReadFile(mount_ / "first") == first.Get());
  EXPECT_TRUE(ReadFile(mount_ / "second") == second.Get());
  first.Set(Bytes(100'001));
  second.Set(Bytes(5'000));
  EXPECT_TRUE(handle->LoadMany(mount_.folder(), files, {}).value().empty());
  EXPECT_TRUE(first.Get() == RandomBytes(100'001, 1));
  EXPECT_TRUE(second.Get() == RandomBytes(5'000, 2));
  const auto refused = Make(GpuMode::kBounce)->SaveMany(mount_.folder(), files, {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().error_number(), EOPNOTSUPP);
}

TEST_F(GpuLeaseTest, ChecksumsInAttributesAreRefusedForGpuMemory) {
  const DeviceBytes memory(RandomBytes(100'000));
  const auto refused =
      Make(GpuMode::kBounce, Direct::kNever)->Write(folder_ / "file", memory.View(), {.checksum = true});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().error_number(), EOPNOTSUPP);
  EXPECT_EQ(folder_.entries(), 0U);
}

}  // namespace
}  // namespace weightfs::client
