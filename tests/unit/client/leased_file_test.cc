// SPDX-License-Identifier: Apache-2.0
#include "client/lease/leased_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>

#include "client/handle.h"
#include "client/lease/leased_blocks.h"
#include "common/units.h"
#include "tests/support/aligned_memory.h"
#include "tests/support/kernel_hooks.h"
#include "tests/unit/client/fake_lease_mount.h"
#include "tests/unit/client/operations.h"

namespace weightfs::client {
namespace {

using lease::Kind;

class LeaseTest : public KernelHooksTest {
 protected:
  static std::unique_ptr<Handle> Make(HandleOptions options = {}) {
    options.direct = options.direct == Direct::kAuto ? Direct::kRequire : options.direct;
    return std::move(Handle::Create(options).value());
  }
  // Content with holes: blocks of zeros.
  static Bytes Sparse(size_t size) {
    Bytes bytes = RandomBytes(size, 21);
    for (size_t at = 3 * kBlockSize; at + 9 * kBlockSize < size; at += 40 * kBlockSize) {
      std::fill_n(bytes.begin() + static_cast<long>(at), 7 * kBlockSize, std::byte{0});
    }
    return bytes;
  }

  FakeLeaseMount mount_;
};

// So that what is loaded does not wait behind loads of others.
TEST_F(LeaseTest, AMapFirstAsksForWhatIsLoaded) {
  WriteFile(mount_ / "file", RandomBytes(1 << 20, 1));
  const UniqueFd file(open((mount_ / "file").c_str(), O_RDONLY | O_CLOEXEC));
  const auto handle = Make();
  int loaded_error = ENOMEM;
  mount_.on_request = [&](Kind kind) { return kind == Kind::kMapLoaded ? loaded_error : kind == Kind::kMap ? EIO : 0; };
  const auto error = [&](bool load) {
    return static_cast<int>(handle->Map(file.get(), 0, 1 << 20, load).error().code);
  };
  const auto counts = [&] { return std::pair(mount_.requests(Kind::kMapLoaded), mount_.requests(Kind::kMap)); };
  EXPECT_EQ(error(true), EIO);
  EXPECT_EQ(counts(), std::pair(size_t{1}, size_t{1}));
  EXPECT_EQ(error(false), ENOMEM);
  EXPECT_EQ(counts(), std::pair(size_t{2}, size_t{1}));
  loaded_error = EPERM;
  EXPECT_EQ(error(true), EPERM);
  EXPECT_EQ(counts(), std::pair(size_t{3}, size_t{1}));
}

TEST_F(LeaseTest, AMapThatWaitsForTheMountIsInterrupted) {
  WriteFile(mount_ / "file", RandomBytes(1 << 20, 1));
  const UniqueFd file(open((mount_ / "file").c_str(), O_RDONLY | O_CLOEXEC));
  const auto handle = Make();
  std::promise<void> answer;
  mount_.on_request = [&](Kind kind) {
    if (kind == Kind::kMap) answer.get_future().wait_for(std::chrono::seconds(10));
    return kind == Kind::kMap || kind == Kind::kMapLoaded ? ENOMEM : 0;
  };
  int looks = 0;
  const auto mapped = handle->Map(file.get(), 0, 1 << 20, /*load=*/true, [&] { return ++looks == 5; });
  answer.set_value();
  ASSERT_FALSE(mapped.has_value());
  EXPECT_EQ(mapped.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(looks, 5);
}

// Around blocks, extents and slices, with holes; memory of every alignment.
TEST_F(LeaseTest, EveryRangeIsReadToTheLastByteAndNoFurther) {
  const Bytes content = Sparse(2'500'123);
  WriteFile(mount_ / "file", content);
  mount_.extent_blocks = 37;
  for (const HandleOptions& options :
       {HandleOptions{}, HandleOptions{.block_size = 8192, .queue_depth = 3, .intra_op_parallelism = 3},
        HandleOptions{.block_size = 1000, .queue_depth = 2, .single_submit = true, .overlap_events = true}}) {
    const auto handle = Make(options);
    uint64_t count = 0;
    AlignedMemory memory(4 << 20);
    for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{12'000}, uint64_t{1'000'001}}) {
      for (const size_t size :
           {size_t{1}, size_t{4095}, size_t{4096}, size_t{8193}, size_t{1'200'000}, content.size() - offset}) {
        for (const size_t misalignment : {size_t{0}, size_t{64}, size_t{offset % kBlockSize}}) {
          if (offset + size > content.size()) continue;
          SCOPED_TRACE(fmt::format("offset {} size {} memory +{}", offset, size, misalignment));
          std::memset(memory.data(), 0x5a, memory.size());
          const MemoryView view(std::span(memory.data() + misalignment, size));
          const auto done = handle->Read(mount_ / "file", view, {.offset = offset});
          ASSERT_TRUE(done.has_value()) << done.error().what;
          ASSERT_EQ(std::memcmp(memory.data() + misalignment, content.data() + offset, size), 0);
          ASSERT_EQ(memory.data()[misalignment + size], std::byte{0x5a});
          if (misalignment > 0) {
            ASSERT_EQ(memory.data()[misalignment - 1], std::byte{0x5a});
          }
          EXPECT_EQ(handle->direct_operations(), ++count);
        }
      }
    }
  }
  mount_.WaitForNoLease();
  EXPECT_EQ(mount_.connections(), 3U);
}

TEST_F(LeaseTest, ACompletedOperationReleasesItsDevice) {
  const auto handle = Make();
  Bytes bytes = RandomBytes(1'000'000);
  ASSERT_TRUE(handle->Write(mount_ / "file", View(bytes)).has_value());
  const size_t before = OpenDescriptors();
  std::vector<std::shared_ptr<Operation>> kept;
  for (int i = 0; i < 10; ++i) {
    kept.push_back(handle->StartWrite(mount_ / "file", View(bytes)).value());
    kept.push_back(handle->StartRead(mount_ / "file", View(bytes)).value());
  }
  EXPECT_EQ(handle->Wait().count, 20U);
  EXPECT_TRUE(NoMoreAreOpenThan(before));
}

TEST_F(LeaseTest, EveryWriteReplacesItsBytesAndNoOthers) {
  mount_.extent_blocks = 37;
  const auto handle = Make({.block_size = 65536, .intra_op_parallelism = 2});
  AlignedMemory memory(4 << 20);
  unsigned seed = 0;
  for (const std::optional<uint64_t> offset :
       {std::optional<uint64_t>{}, std::optional<uint64_t>{0}, std::optional<uint64_t>{4096},
        std::optional<uint64_t>{70'001}, std::optional<uint64_t>{2'900'000}}) {
    for (const size_t size : {size_t{8192}, size_t{12'345}, size_t{1'000'000}, size_t{2'500'123}}) {
      for (const size_t misalignment : {size_t{0}, size_t{1}, size_t{512}}) {
        SCOPED_TRACE(fmt::format("offset {} size {} memory +{}", offset ? static_cast<int64_t>(*offset) : -1, size,
                                 misalignment));
        const Bytes old = RandomBytes(3'000'000, 7);
        WriteFile(mount_ / "file", old);
        const Bytes bytes = RandomBytes(size, ++seed);
        std::memcpy(memory.data() + misalignment, bytes.data(), size);
        const MemoryView view(std::span(memory.data() + misalignment, size));
        const auto done = handle->Write(mount_ / "file", view, {.offset = offset});
        ASSERT_TRUE(done.has_value()) << done.error().what;
        ASSERT_TRUE(ReadFile(mount_ / "file") == AfterWrite(old, offset, bytes));
      }
    }
  }
  EXPECT_EQ(handle->direct_operations(), seed);
  EXPECT_EQ(mount_.requests(Kind::kCommit), seed);
  mount_.WaitForNoLease();
}

TEST_F(LeaseTest, AsynchronousOperationsAndDescriptorsUseLeasesToo) {
  const auto handle = Make({.direct = Direct::kAuto});
  Bytes source = RandomBytes(3'000'000, 3);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(handle->StartWrite(mount_ / std::to_string(i), View(source)).has_value());
  EXPECT_EQ(handle->Wait().count, 20U);
  const int descriptor = open((mount_ / "7").c_str(), O_RDWR);
  Bytes target(2'000'000);
  ASSERT_TRUE(handle->StartRead(descriptor, View(target), {.offset = 1'000'000}).has_value());
  EXPECT_EQ(handle->Wait().count, 1U);
  EXPECT_TRUE(std::equal(target.begin(), target.end(), source.begin() + 1'000'000));
  ASSERT_TRUE(handle->Write(descriptor, View(target), {.offset = 4096}).has_value());
  close(descriptor);
  std::copy(target.begin(), target.end(), source.begin() + 4096);
  EXPECT_TRUE(ReadFile(mount_ / "7") == source);
  EXPECT_EQ(handle->direct_operations(), 22U);
  mount_.WaitForNoLease();
}

// The program changes its memory whenever the kernel gets transfers or ends one. It also changes the memory back, so
// that neither the checksum from before a transfer nor the one from after it matches the bytes sent.
TEST_F(LeaseTest, AFileWrittenFromMemoryThatChangesReadsBack) {
  AlignedMemory memory(3 << 20);
  for (const int back_to : {1, 3}) {
    const auto fill = [&](int value) { std::memset(memory.data(), value, memory.size()); };
    size_t changes = 0;
    OnSubmit([&](Controls controls) -> long {
      fill(2);
      ++changes;
      return static_cast<long>(controls.size());
    });
    OnEvent([&](KernelEvent&) { fill(back_to); });
    for (const size_t misalignment : {size_t{0}, size_t{1}}) {
      for (const std::optional<uint64_t> offset : {std::optional<uint64_t>{}, std::optional<uint64_t>{70'001}}) {
        for (const int block_size : {65536, 1 << 20}) {
          SCOPED_TRACE(fmt::format("back to {} memory +{} offset {} block_size {}", back_to, misalignment,
                                   offset.value_or(0), block_size));
          WriteFile(mount_ / "file", Bytes(100));
          fill(1);
          const auto handle = Make({.block_size = static_cast<uint64_t>(block_size)});
          const size_t size = memory.size() - 1234;
          // A commit whose checksum does not match the bytes on the device is refused.
          const auto done = handle->Write(mount_ / "file", MemoryView(std::span(memory.data() + misalignment, size)),
                                          {.offset = offset});
          ASSERT_TRUE(done.has_value()) << done.error().what;
          const Bytes written = ReadFile(mount_ / "file");
          ASSERT_EQ(written.size(), offset.value_or(0) + size);
          const auto begin = written.begin() + static_cast<long>(offset.value_or(0));
          EXPECT_TRUE(std::all_of(begin, written.end(), [](std::byte byte) {
            return byte == std::byte{1} || byte == std::byte{2} || byte == std::byte{3};
          }));
        }
      }
    }
    EXPECT_GT(changes, 8U);
  }
}

TEST_F(LeaseTest, AWholeFileThatDoesNotFitBesideTheOldOneTakesItsPlaceOrFails) {
  const Bytes old = RandomBytes(3'000'000, 8);
  Bytes bytes = RandomBytes(5'000'000, 9);
  for (const int in_place : {0, ENOSPC, EINVAL}) {  // EINVAL: an older mount
    WriteFile(mount_ / "file", old);
    mount_.on_request = [&](Kind kind) {
      return kind == Kind::kReserve ? ENOSPC : kind == Kind::kReserveInPlace ? in_place : 0;
    };
    const auto handle = std::move(Handle::Create({}).value());
    const uint64_t asked = mount_.requests(Kind::kReserveInPlace);
    const auto written = handle->Write(mount_ / "file", View(bytes));
    EXPECT_EQ(mount_.requests(Kind::kReserveInPlace), asked + 1);
    EXPECT_EQ(written.has_value() ? 0 : written.error().error_number(), in_place == 0 ? 0 : ENOSPC);
    EXPECT_TRUE(ReadFile(mount_ / "file") == (in_place == 0 ? bytes : old));
    EXPECT_EQ(handle->direct_operations(), in_place == 0 ? 1U : 0U);
    // A part of a file goes through the mount, and a lease that is required changes the file at once or not at all.
    EXPECT_TRUE(handle->Write(mount_ / "file", View(bytes), {.offset = 0}).has_value());
    EXPECT_EQ(Make()->Write(mount_ / "file", View(bytes)).error().error_number(), ENOSPC);
    EXPECT_EQ(mount_.requests(Kind::kReserveInPlace), asked + 1);
  }
  mount_.WaitForNoLease();
}

TEST_F(LeaseTest, ALeaseServerOfAnotherUserThanTheMountsIsRefused) {
  Bytes bytes = RandomBytes(5'000'000, 6);
  mount_.user = geteuid() + 1;
  const auto handle = Make();
  const auto refused = handle->Write(mount_ / "file", View(bytes));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().error_number(), EACCES);
  const auto reason = fmt::format("no lease: user {} serves the mount, and a process of user {} (PID {}) listens",
                                  geteuid() + 1, geteuid(), getpid());
  EXPECT_NE(refused.error().what.find(reason), std::string::npos) << refused.error().what;
  EXPECT_EQ(handle->SaveMany(mount_.folder(), std::vector<NamedMemory>{{"a", View(bytes)}}).error().error_number(),
            EACCES);
  EXPECT_EQ(mount_.requests(Kind::kReserve), 0U);
  // If no lease is required, the mount takes the bytes.
  const auto any = std::move(Handle::Create({}).value());
  ASSERT_TRUE(any->Write(mount_ / "file", View(bytes)).has_value());
  EXPECT_EQ(any->direct_operations(), 0U);
  EXPECT_TRUE(ReadFile(mount_ / "file") == bytes);
  mount_.user = geteuid();
  EXPECT_TRUE(handle->Write(mount_ / "file", View(bytes)).has_value());
}

TEST_F(LeaseTest, AServerThatTheMountDoesNotConfirmIsRefused) {
  Bytes bytes = RandomBytes(5'000'000, 7);
  mount_.impostor = true;
  const auto handle = Make();
  const auto refused = handle->Write(mount_ / "file", View(bytes));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().error_number(), EACCES);
  EXPECT_NE(refused.error().what.find("is not the mount"), std::string::npos) << refused.error().what;
  EXPECT_EQ(handle->SaveMany(mount_.folder(), std::vector<NamedMemory>{{"a", View(bytes)}}).error().error_number(),
            EACCES);
  EXPECT_EQ(mount_.requests(Kind::kReserve), 0U) << "it gets no request";
  mount_.impostor = false;
  EXPECT_TRUE(handle->Write(mount_ / "file", View(bytes)).has_value());
}

TEST_F(LeaseTest, WhatTheMountHasVerifiedIsNotVerifiedAgain) {
  Bytes bytes = RandomBytes(3'000'000, 1);
  WriteFile(mount_ / "file", bytes);
  mount_.verified = 1;
  mount_.on_laid_out = [&](const std::vector<lease::Extent>& extents) {
    const UniqueFd device(open(mount_.device().c_str(), O_RDWR));
    const auto at = static_cast<off_t>(extents[2].device_block * kBlockSize);
    if (pwrite(device.get(), "x", 1, at) != 1 || fdatasync(device.get()) != 0) std::abort();
  };
  AlignedMemory memory(4 << 20);  // the fake's blocks are not in memory
  const auto target = memory.bytes().first(bytes.size());
  ASSERT_TRUE(Make({.block_size = 65536})->Read(mount_ / "file", MemoryView(target)).has_value());
  bytes[200 * kBlockSize] = std::byte{'x'};
  EXPECT_TRUE(std::ranges::equal(target, bytes));
}

TEST_F(LeaseTest, DamagedBlocksAreReadAgainBeforeTheErrorNamesTheirLocation) {
  WriteFile(mount_ / "file", RandomBytes(3'000'000, 1));
  int flips = 0;
  mount_.on_laid_out = [&](const std::vector<lease::Extent>& extents) {
    const auto& extent = extents[2];
    const UniqueFd device(open(mount_.device().c_str(), O_RDWR));
    const auto at = static_cast<off_t>((extent.device_block + 5) * kBlockSize + 17);
    char value = 0;
    if (pread(device.get(), &value, 1, at) != 1) std::abort();
    value = static_cast<char>(value ^ 1);
    if (pwrite(device.get(), &value, 1, at) != 1 || fdatasync(device.get()) != 0) std::abort();
    ++flips;
  };
  const auto handle = Make({.block_size = 65536});
  Bytes target(3'000'000);
  const auto result = handle->Read(mount_ / "file", View(target));
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(flips, 1);
  EXPECT_EQ(result.error().error_number(), EIO);
  EXPECT_EQ(result.error().path, mount_ / "file");
  EXPECT_EQ(result.error().offset, 205U * kBlockSize);
  EXPECT_NE(result.error().what.find("the block at offset 839680 is not what was written: its CRC-32C is "),
            std::string::npos)
      << result.error().what;
  EXPECT_NE(result.error().what.find(std::filesystem::canonical(mount_.device())), std::string::npos);

  // Only once: the second read returns the right bytes.
  mount_.on_laid_out = nullptr;
  int reads = 0;
  OnEvent([&](KernelEvent& event) {
    if (++reads == 3) reinterpret_cast<std::byte*>(event.control->buffer)[99] ^= std::byte{1};
  });
  ASSERT_TRUE(handle->Read(mount_ / "file", View(target)).has_value());
  EXPECT_TRUE(target == RandomBytes(3'000'000, 1));
}

// Others may have the blocks then.
TEST_F(LeaseTest, AReadThatOutlivesItsMountReportsNoDamage) {
  WriteFile(mount_ / "file", RandomBytes(3'000'000, 1));
  const auto handle = Make({.block_size = 65536});
  Bytes target(3'000'000);
  bool stopped = false;
  OnEvent([&](KernelEvent& event) {
    if (!std::exchange(stopped, true)) mount_.Stop();
    reinterpret_cast<std::byte*>(event.control->buffer)[99] ^= std::byte{1};
  });
  const auto result = handle->Read(mount_ / "file", View(target));
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().error_number(), EPIPE) << result.error().what;
  EXPECT_EQ(result.error().path, mount_ / "file");
}

TEST_F(LeaseTest, ShortTransfersAreContinuedAndRefusedOnesAreErrors) {
  const Bytes content = Sparse(2'500'123);
  WriteFile(mount_ / "file", content);
  const auto handle = Make({.block_size = 65536, .queue_depth = 8});
  OnSubmit([](Controls controls) -> long {
    for (KernelControl* control : controls) control->size = std::min<uint64_t>(control->size, 8192);
    return static_cast<long>(controls.size());
  });
  Bytes bytes = content;
  ASSERT_TRUE(handle->Write(mount_ / "other", View(bytes)).has_value());
  EXPECT_TRUE(ReadFile(mount_ / "other") == content);
  Bytes target(content.size());
  ASSERT_TRUE(handle->Read(mount_ / "file", View(target)).has_value());
  EXPECT_TRUE(target == content);

  OnSubmit(nullptr);
  int events = 0;
  OnEvent([&](KernelEvent& event) {
    if (++events % 2 == 1) event.result = events % 4 == 1 ? -EAGAIN : -EINTR;
  });
  Bytes part(content.size() - 5000);
  ASSERT_TRUE(handle->Read(mount_ / "file", View(part), {.offset = 5000}).has_value());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), content.begin() + 5000));
  // The file that the mount shows may be another one than the leased one.
  for (const int64_t result : {-EINVAL, -EIO, 700}) {
    OnEvent([&](KernelEvent& event) { event.result = std::min<int64_t>(event.result, result); });
    const int expected = result == -EINVAL ? EINVAL : EIO;
    EXPECT_EQ(handle->Read(mount_ / "file", View(part), {.offset = 5000}).error().error_number(), expected);
    EXPECT_EQ(handle->Write(mount_ / "other", View(part)).error().error_number(), expected);
    EXPECT_TRUE(ReadFile(mount_ / "other") == content);
  }
  mount_.WaitForNoLease();
}

TEST_F(LeaseTest, AFailedWriteLeavesTheOldFileAndNoNewOne) {
  const Bytes old = RandomBytes(2'000'000, 4);
  WriteFile(mount_ / "old", old);
  const auto handle = Make({.block_size = 65536, .queue_depth = 4});
  Bytes bytes = RandomBytes(3'000'000, 5);
  for (const bool atomic : {false, true}) {
    OnEvent([](KernelEvent& event) { event.result = -EIO; });
    EXPECT_EQ(handle->Write(mount_ / "old", View(bytes), {.atomic = atomic}).error().error_number(), EIO);
    EXPECT_EQ(handle->Write(mount_ / "new", View(bytes), {.atomic = atomic}).error().error_number(), EIO);
    OnEvent(nullptr);
    mount_.on_request = [](Kind kind) { return kind == Kind::kCommit ? ENOSPC : 0; };
    const auto refused = handle->Write(mount_ / "old", View(bytes), {.atomic = atomic});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().error_number(), ENOSPC);
    EXPECT_NE(refused.error().what.find("the mount did not commit it: the fake refuses"), std::string::npos);
    EXPECT_FALSE(handle->Write(mount_ / "new", View(bytes), {.atomic = atomic}).has_value());
    mount_.on_request = nullptr;
    EXPECT_TRUE(ReadFile(mount_ / "old") == old);
    EXPECT_EQ(mount_.entries(), 1U);
  }
  ASSERT_TRUE(handle->Write(mount_ / "old", View(bytes), {.durable = true, .atomic = true}).has_value());
  EXPECT_TRUE(ReadFile(mount_ / "old") == bytes);
  mount_.WaitForNoLease();
}

TEST_F(LeaseTest, AFailedWriteKeepsWhatAnotherProgramHasCommitted) {
  const auto handle = Make();
  Bytes bytes = RandomBytes(3'000'000, 5);
  const Bytes others = RandomBytes(3'000'000, 6);
  for (const bool present : {false, true}) {
    std::filesystem::remove(mount_ / "file");
    if (present) WriteFile(mount_ / "file", RandomBytes(2'000'000, 4));
    mount_.on_request = [&](Kind kind) {
      if (kind != Kind::kCommit) return 0;
      WriteFile(mount_ / "file", others);
      return ENOSPC;
    };
    EXPECT_EQ(handle->Write(mount_ / "file", View(bytes)).error().error_number(), ENOSPC);
    EXPECT_TRUE(ReadFile(mount_ / "file") == others);
  }
  mount_.WaitForNoLease();
}

TEST_F(LeaseTest, ARefusedLeaseIsAnErrorOnlyWhereOneIsRequired) {
  Bytes bytes = RandomBytes(5'000'000, 6);
  Bytes target(bytes.size());
  const auto never = Make({.direct = Direct::kNever});
  for (const int error_number : {EPERM, EOPNOTSUPP, ENOTTY}) {
    mount_.ticket_error = error_number;
    const auto required = Make();
    const auto refused = required->Write(mount_ / "file", View(bytes));
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().error_number(), error_number);
    EXPECT_NE(refused.error().what.find("no lease: "), std::string::npos) << refused.error().what;
    EXPECT_EQ(mount_.entries(), 0U);
    const auto handle = std::move(Handle::Create({}).value());
    ASSERT_TRUE(handle->Write(mount_ / "file", View(bytes)).has_value());
    ASSERT_TRUE(handle->Read(mount_ / "file", View(target)).has_value());
    EXPECT_TRUE(target == bytes);
    EXPECT_EQ(handle->direct_operations(), 0U);
    std::filesystem::remove(mount_ / "file");
  }
  mount_.ticket_error = 0;
  mount_.on_request = [](Kind) { return EAGAIN; };
  const auto handle = std::move(Handle::Create({}).value());
  ASSERT_TRUE(handle->Write(mount_ / "file", View(bytes)).has_value());
  mount_.on_request = nullptr;
  ASSERT_TRUE(never->Read(mount_ / "file", View(target)).has_value());
  EXPECT_EQ(never->direct_operations(), 0U);
  // Small operations do not use a lease.
  Bytes small(1'000'000);
  ASSERT_TRUE(handle->Read(mount_ / "file", View(small)).has_value());
  EXPECT_EQ(handle->direct_operations(), 0U);
  ASSERT_TRUE(handle->Read(mount_ / "file", View(target)).has_value());
  EXPECT_EQ(handle->direct_operations(), 1U);
  mount_.WaitForNoLease();
}

TEST_F(LeaseTest, AMountThatGoesAwayIsAnErrorAndNotAHang) {
  Bytes bytes = RandomBytes(2'000'000, 6);
  WriteFile(mount_ / "old", bytes);
  const auto handle = Make({.block_size = 65536, .queue_depth = 2});
  Bytes target(bytes.size());
  ASSERT_TRUE(handle->Read(mount_ / "old", View(target)).has_value());
  const size_t before = OpenDescriptors();
  // During the transfer.
  bool stopped = false;
  OnEvent([&](KernelEvent&) {
    if (!std::exchange(stopped, true)) mount_.Stop();
  });
  const auto written = handle->Write(mount_ / "new", View(bytes));
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().error_number(), EPIPE);
  EXPECT_EQ(mount_.entries(), 1U);
  const auto read = handle->Read(mount_ / "old", View(target));
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().error_number(), ECONNREFUSED);
  EXPECT_LT(OpenDescriptors(), before);
}

TEST_F(LeaseTest, ThousandLeasesLeaveNothingBehind) {
  const auto handle = Make();
  Bytes bytes = RandomBytes(20'000, 6);
  ASSERT_TRUE(handle->Write(mount_ / "file", View(bytes)).has_value());
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(handle->Write(mount_ / "file", View(bytes)).has_value());
    ASSERT_TRUE(handle->Read(mount_ / "file", View(bytes)).has_value());
  }
  EXPECT_TRUE(NoMoreAreOpenThan(before));
  EXPECT_EQ(mount_.connections(), 1U);
  EXPECT_EQ(mount_.asked(), 1000U) << "all but the first came by ioctl";
  mount_.WaitForNoLease();
}

TEST_F(LeaseTest, AHandleLimitsTheNumberOfItsLeases) {
  Bytes bytes = RandomBytes(5000, 6);
  WriteFile(mount_ / "file", bytes);
  const auto handle = Make({.queue_depth = 1});
  // No transfer ends before all have begun.
  std::atomic<bool> begun = false;
  OnWait([&] { return begun.load(); });
  std::vector<Bytes> targets(LeaseConnections::kMost, Bytes(5000));
  for (auto& target : targets) ASSERT_TRUE(handle->StartRead(mount_ / "file", View(target)).has_value());
  Bytes target(5000);
  const auto refused = handle->StartRead(mount_ / "file", View(target));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().error_number(), EAGAIN);
  begun = true;
  EXPECT_EQ(handle->Wait().count, targets.size());
  for (const auto& read : targets) EXPECT_TRUE(read == bytes);
  EXPECT_TRUE(handle->Read(mount_ / "file", View(target)).has_value());
  mount_.WaitForNoLease();
}

// Pieces are prepared ahead of the kernel's capacity, but the queue depth is still respected.
TEST_F(LeaseTest, NoMoreTransfersThanTheDepthAreInTheKernel) {
  constexpr int64_t kDepth = 4;
  AlignedMemory memory(3 << 20);
  const Bytes content = RandomBytes(3 << 20, 23);
  std::memcpy(memory.data(), content.data(), content.size());
  for (const bool overlap : {false, true}) {
    int64_t in_kernel = 0, most = 0;
    OnSubmit([&](Controls controls) -> long {
      in_kernel += static_cast<int64_t>(controls.size());
      most = std::max(most, in_kernel);
      return static_cast<long>(controls.size());
    });
    OnEvent([&](KernelEvent&) { --in_kernel; });
    const auto handle = Make({.block_size = 65536, .queue_depth = kDepth, .overlap_events = overlap});
    ASSERT_TRUE(handle->Write(mount_ / "file", MemoryView(memory.bytes())).has_value());
    EXPECT_TRUE(ReadFile(mount_ / "file") == content);
    std::memset(memory.data(), 0, memory.size());
    ASSERT_TRUE(handle->Read(mount_ / "file", MemoryView(memory.bytes())).has_value());
    EXPECT_EQ(std::memcmp(memory.data(), content.data(), content.size()), 0);
    EXPECT_LE(most, kDepth);
    EXPECT_EQ(in_kernel, 0);
  }
}

TEST_F(LeaseTest, ImpossibleRepliesOfTheMountAreRefused) {
  LeasedBlocks blocks;
  const auto add = [&](uint64_t block, uint64_t count, uint64_t device_block, uint32_t device) {
    return blocks.Add(std::array{lease::Extent{block, count, device_block, device}}, 0).has_value();
  };
  ASSERT_TRUE(blocks.Reset(10, 20).has_value());
  EXPECT_FALSE(add(10, 1, 1, 0));  // no such device
  std::vector<UniqueFd> devices;
  devices.emplace_back(open(mount_.device().c_str(), O_RDONLY));
  blocks.Adopt(std::move(devices));
  EXPECT_FALSE(add(9, 1, 1, 0));   // before the range
  EXPECT_FALSE(add(29, 2, 1, 0));  // behind it
  EXPECT_FALSE(add(11, 0, 1, 0));
  EXPECT_FALSE(add(11, UINT64_MAX, 1, 0));
  EXPECT_FALSE(add(11, 2, UINT64_MAX, 0));
  ASSERT_TRUE(add(12, 4, 100, 0));
  EXPECT_FALSE(add(15, 1, 200, 0));  // overlaps
  ASSERT_TRUE(add(16, 4, 104, 0));   // contiguous: merged with the last run
  const auto run = blocks.Locate(13 * kBlockSize + 5, 1 << 20);
  EXPECT_EQ(run.offset, 101 * kBlockSize + 5);
  EXPECT_EQ(run.length, 7 * kBlockSize - 5);
  EXPECT_EQ(blocks.Locate(10 * kBlockSize, 1 << 20).descriptor, -1);
  EXPECT_EQ(blocks.Locate(10 * kBlockSize, 1 << 20).length, 2 * kBlockSize);
  EXPECT_EQ(blocks.Locate(20 * kBlockSize, 7).length, 7U);
}

}  // namespace
}  // namespace weightfs::client
