// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <latch>

#include "client/handle.h"
#include "client/random_reader.h"
#include "common/unique_fd.h"
#include "common/units.h"
#include "tests/support/aligned_memory.h"
#include "tests/support/kernel_hooks.h"
#include "tests/unit/client/files.h"

namespace weightfs::client {
namespace {

class KernelAnswersTest : public KernelHooksTest {
 protected:
  class StandingTransfer;

  static std::unique_ptr<Handle> Make(HandleOptions options = {.block_size = 65536, .queue_depth = 16}) {
    return std::move(Handle::Create(options).value());
  }

  // Writes and reads back with the hooks installed, and checks the bytes.
  void ExpectARoundTrip(Handle& handle) {
    AlignedMemory source(kSize);
    std::memcpy(source.data(), RandomBytes(kSize, 9).data(), kSize);
    ASSERT_TRUE(handle.Write(folder_ / "file", MemoryView(source.bytes())).has_value());
    EXPECT_EQ(ReadFile(folder_ / "file"), RandomBytes(kSize, 9));
    AlignedMemory target(kSize);
    ASSERT_TRUE(handle.Read(folder_ / "file", MemoryView(target.bytes())).has_value());
    EXPECT_EQ(std::memcmp(target.data(), source.data(), kSize), 0);
  }

  static constexpr size_t kSize = 2'000'000;
  Folder folder_;
};

TEST_F(KernelAnswersTest, TransfersThatTheKernelRefusesForNowAreSubmittedAgain) {
  int calls = 0;
  OnSubmit([&](Controls controls) -> long {
    // Accepts nothing, fails, and accepts a part, in turn. The first failures come with nothing in flight.
    switch (++calls % 4) {
      case 1: return -EAGAIN;
      case 2: return -EINTR;
      case 3: return static_cast<long>((controls.size() + 1) / 2);
      default: return static_cast<long>(controls.size());
    }
  });
  ExpectARoundTrip(*Make());
  EXPECT_GT(calls, 8);
}

// While it exists, the first transfer that is submitted does not end.
class KernelAnswersTest::StandingTransfer {
 public:
  StandingTransfer() {
    OnSubmit([this](Controls controls) -> long {
      if (std::exchange(replaced_, true)) return static_cast<long>(controls.size());
      // Submits a poll of the descriptor instead of the transfer.
      constexpr uint16_t kPollOpcode = 5;
      *controls[0] = {.data = controls[0]->data,
                      .opcode = kPollOpcode,
                      .descriptor = static_cast<uint32_t>(ending_.get()),
                      .buffer = POLLIN};
      sent_.count_down();
      return static_cast<long>(controls.size());
    });
  }
  void WaitUntilSent() { sent_.wait(); }
  void LetGo() {
    const uint64_t one = 1;
    ASSERT_EQ(write(ending_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }

 private:
  const UniqueFd ending_{eventfd(0, EFD_CLOEXEC)};
  std::latch sent_{1};
  bool replaced_ = false;
};

// The ring's thread waits in the kernel for a transfer that does not end before the other one has.
TEST_F(KernelAnswersTest, AnOperationBeginsWhileAnotherIsUnderWay) {
  AlignedMemory slow(kBlockSize);
  AlignedMemory quick(kBlockSize);
  const auto handle = Make();
  StandingTransfer standing;
  const auto first = handle->StartWrite(folder_ / "slow", MemoryView(slow.bytes())).value();
  standing.WaitUntilSent();
  for (int i = 0; i < 10; ++i) {  // fewer than a batch
    const auto second = handle->StartWrite(folder_ / "quick", MemoryView(quick.bytes())).value();
    EXPECT_TRUE(second->Wait(std::chrono::seconds(20)));
    const auto third = handle->StartWrite(folder_ / "cached", MemoryView(quick.bytes().first(100))).value();
    EXPECT_TRUE(third->Wait(std::chrono::seconds(20)));
    EXPECT_FALSE(first->done());
    if (HasFailure()) break;
  }
  standing.LetGo();
  EXPECT_TRUE(first->Wait());
}

TEST_F(KernelAnswersTest, AWaitInACallbackReturnsAtOnce) {
  AlignedMemory slow(kBlockSize);
  AlignedMemory quick(kBlockSize);
  const auto handle = Make();
  StandingTransfer standing;
  const auto first = handle->StartWrite(folder_ / "slow", MemoryView(slow.bytes())).value();
  standing.WaitUntilSent();
  std::latch registered(1), called(1);
  const Progress progress = [&](uint64_t, uint64_t) { registered.wait(); };
  const auto second = handle->StartWrite(folder_ / "quick", MemoryView(quick.bytes()), {.progress = progress}).value();
  second->OnDone([&] {
    EXPECT_FALSE(first->Wait());
    called.count_down();
  });
  registered.count_down();
  called.wait();
  standing.LetGo();
  EXPECT_TRUE(first->Wait());
}

TEST_F(KernelAnswersTest, CanceledOperationsEndAndTheirQueuedPartIsNotWritten) {
  AlignedMemory memory(1 << 20);
  const auto handle = Make({.block_size = 4096, .queue_depth = 1});
  StandingTransfer standing;
  const auto first = handle->StartWrite(folder_ / "first", MemoryView(memory.bytes())).value();
  standing.WaitUntilSent();
  std::vector<std::shared_ptr<Operation>> operations;
  for (int i = 0; i < 8; ++i) {
    const WriteOptions options{.own_errors = true};
    operations.push_back(
        handle->StartWrite(folder_ / std::to_string(i), MemoryView(memory.bytes()), options).value());
  }
  for (auto operation = operations.rbegin(); operation != operations.rend(); ++operation) (*operation)->Cancel();
  first->Cancel();
  standing.LetGo();
  for (const auto& operation : operations) {
    ASSERT_TRUE(operation->Wait());
    EXPECT_TRUE(operation->cancelled());
    EXPECT_LT(operation->transferred(), operation->size());
    EXPECT_FALSE(operation->Cancel());
  }
  EXPECT_TRUE(first->Wait());
  EXPECT_LT(first->transferred(), first->size());
  // A canceled whole-file write leaves nothing that looks like a file.
  EXPECT_EQ(folder_.entries(), 0U);
  EXPECT_EQ(handle->Wait().errors.size(), 1U) << "that of the first, which is not its own";
}

// The checksums in the attribute are those of the bytes that were sent.
TEST_F(KernelAnswersTest, ChecksumsMatchTheFileWhenMemoryChangesDuringTheWrite) {
  AlignedMemory memory(3 << 20);
  const auto fill = [&](int value) { std::memset(memory.data(), value, memory.size()); };
  for (const int back_to : {1, 3}) {
    OnSubmit([&](Controls controls) -> long {
      fill(2);
      return static_cast<long>(controls.size());
    });
    OnEvent([&](KernelEvent&) { fill(back_to); });
    for (const auto& [block_size, misalignment] : {std::pair(65536, 0), std::pair(1000, 1), std::pair(3 << 19, 64)}) {
      SCOPED_TRACE(fmt::format("back to {} block_size {} memory +{}", back_to, block_size, misalignment));
      fill(1);
      const auto handle = Make({.block_size = static_cast<uint64_t>(block_size)});
      const MemoryView view(std::span(memory.data() + misalignment, memory.size() - 1234));
      const auto written = handle->Write(folder_ / "file", view, {.checksum = true});
      if (!written.has_value() && written.error().error_number() == EOPNOTSUPP) GTEST_SKIP() << written.error().what;
      ASSERT_TRUE(written.has_value()) << written.error().what;
      Bytes target(view.size());
      OnSubmit(nullptr);
      OnEvent(nullptr);
      const auto read = handle->Read(folder_ / "file", MemoryView(std::span<std::byte>(target)), {.verify = true});
      EXPECT_TRUE(read.has_value()) << read.error().what;
      OnSubmit([&](Controls controls) -> long {
        fill(2);
        return static_cast<long>(controls.size());
      });
      OnEvent([&](KernelEvent&) { fill(back_to); });
    }
  }
}

TEST_F(KernelAnswersTest, ShortTransfersAreContinuedFromWhereTheyStopped) {
  OnSubmit([](Controls controls) -> long {
    for (KernelControl* control : controls) {
      if (control->size > 8192) control->size = 8192;
    }
    return static_cast<long>(controls.size());
  });
  ExpectARoundTrip(*Make());
}

TEST_F(KernelAnswersTest, AShortTransferWithoutProgressIsCompleted) {
  // Like a full disk: a part is written, and only the next attempt gets the error.
  OnEvent([](KernelEvent& event) { event.result = std::min<int64_t>(event.result, 700); });
  ExpectARoundTrip(*Make());
}

TEST_F(KernelAnswersTest, AnErrorOfOneTransferFailsTheOperationWithItsErrnoAndOffset) {
  AlignedMemory source(kSize);
  const auto handle = Make({.block_size = 65536, .queue_depth = 4});
  OnEvent([](KernelEvent& event) {
    if (event.control->offset == 5 * 65536) event.result = -ENOSPC;
  });
  const auto result = handle->Write(folder_ / "file", MemoryView(source.bytes()));
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().error_number(), ENOSPC);
  EXPECT_EQ(result.error().offset, 5U * 65536);
  EXPECT_EQ(folder_.entries(), 0U);
}

TEST_F(KernelAnswersTest, RefusedDirectTransfersFallBackToBufferedOnes) {
  OnEvent([](KernelEvent& event) { event.result = -EINVAL; });
  ExpectARoundTrip(*Make());
  OnEvent(nullptr);
  OnSubmit([](Controls) -> long { return -EINVAL; });
  ExpectARoundTrip(*Make());
}

// A page dirtied by a partial block would outlive the direct write next to it.
TEST_F(KernelAnswersTest, PartsOfBlocksAreWrittenAfterAllDirectTransfers) {
  Bytes whole = RandomBytes(5'000'000, 3);
  WriteFile(folder_ / "file", whole);
  AlignedMemory memory(4 << 20);
  constexpr size_t kBegin = 100;
  constexpr size_t kParts = 3'000'000;
  std::memcpy(memory.data() + kBegin, RandomBytes(kParts, 4).data(), kParts);
  int64_t in_kernel = 0;
  std::vector<std::pair<uint64_t, uint64_t>> edges;
  OnSubmit([&](Controls controls) -> long {
    EXPECT_TRUE(edges.empty());
    in_kernel += static_cast<int64_t>(controls.size());
    return static_cast<long>(controls.size());
  });
  OnEvent([&](KernelEvent&) { --in_kernel; });
  OnWrite([&](uint64_t size, uint64_t offset) {
    EXPECT_EQ(in_kernel, 0);
    edges.emplace_back(offset, size);
    return 0;
  });
  const auto handle = Make({.block_size = 65536, .queue_depth = 4, .intra_op_parallelism = 3});
  const MemoryView view(std::span(memory.data() + kBegin, kParts));
  ASSERT_TRUE(handle->Write(folder_ / "file", view, {.offset = kBegin}).has_value());
  std::sort(edges.begin(), edges.end());
  ASSERT_EQ(edges.size(), 2U);
  EXPECT_EQ(edges.front().first, kBegin);
  EXPECT_EQ(edges.back().first + edges.back().second, kBegin + kParts);
  std::memcpy(whole.data() + kBegin, memory.data() + kBegin, kParts);
  EXPECT_EQ(ReadFile(folder_ / "file"), whole);

  // The write's errno becomes the operation's.
  OnSubmit(nullptr);
  OnWrite([](uint64_t, uint64_t) { return EDQUOT; });
  const auto failed = handle->Write(folder_ / "file", view, {.offset = kBegin});
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().error_number(), EDQUOT);
}

TEST_F(KernelAnswersTest, SingleSubmitSendsOneTransferAtATime) {
  size_t most = 0;
  OnSubmit([&](Controls controls) -> long {
    most = std::max(most, controls.size());
    return static_cast<long>(controls.size());
  });
  ExpectARoundTrip(*Make({.block_size = 65536, .queue_depth = 16, .single_submit = true}));
  EXPECT_EQ(most, 1U);
  ExpectARoundTrip(*Make());
  EXPECT_EQ(most, 16U);
}

TEST_F(KernelAnswersTest, WithoutOverlapABatchEndsBeforeTheNextBegins) {
  for (const bool overlap : {false, true}) {
    int64_t in_flight = 0;
    bool refilled = false;
    bool ended = false;
    OnSubmit([&](Controls controls) -> long {
      refilled = refilled || (ended && in_flight > 0);
      in_flight += static_cast<int64_t>(controls.size());
      return static_cast<long>(controls.size());
    });
    OnEvent([&](KernelEvent&) {
      --in_flight;
      ended = true;
    });
    ExpectARoundTrip(*Make({.block_size = 4096, .queue_depth = 16, .overlap_events = overlap}));
    if (!overlap) {
      EXPECT_FALSE(refilled);
    }
  }
}

// ENODATA would mean that the file has ended, and a reader of rows would take the row for the end of the table.
TEST_F(KernelAnswersTest, ADamagedSectorIsNoEndOfAFile) {
  WriteFile(folder_ / "file", RandomBytes(kSize));
  OnEvent([](KernelEvent& event) { event.result = -ENODATA; });
  AlignedMemory target(kSize);
  const auto handle = Make();
  EXPECT_EQ(handle->Read(folder_ / "file", MemoryView(target.bytes())).error().error_number(), EIO);
  const auto reader = RandomReader::Open(folder_ / "file", {.direct = Direct::kNever}).value();
  const uint64_t offset = 4096;
  const auto read = reader->ReadRows({&offset, 1}, kBlockSize, MemoryView(target.bytes().first(kBlockSize)));
  EXPECT_EQ(read.error().error_number(), EIO);
}

TEST_F(KernelAnswersTest, WithFewAioContextsLeftTheRingIsSmaller) {
  OnSetup([](int depth) { return depth > 8 ? -EAGAIN : 0; });
  ExpectARoundTrip(*Make({.block_size = 65536, .queue_depth = 128}));
}

TEST_F(KernelAnswersTest, WithoutAnAioContextTheErrorNamesTheLimit) {
  OnSetup([](int) { return -EAGAIN; });
  const auto handle = Handle::Create({.intra_op_parallelism = 3});
  ASSERT_FALSE(handle.has_value());
  EXPECT_EQ(handle.error().error_number(), EAGAIN);
  EXPECT_NE(handle.error().what.find("/proc/sys/fs/aio-max-nr is "), std::string::npos) << handle.error().what;
  EXPECT_NE(handle.error().what.find("wants 384 (3 threads with a queue_depth of 128)"), std::string::npos)
      << handle.error().what;
  int made = 0;
  OnSetup([&](int) { return ++made > 2 ? -EAGAIN : 0; });
  EXPECT_FALSE(Handle::Create({.intra_op_parallelism = 3}).has_value());
}

}  // namespace
}  // namespace weightfs::client
