// SPDX-License-Identifier: Apache-2.0
// The ring on the kernel's own queue, with results that the kernel seldom returns.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "common/mutex.h"
#include "common/unique_fd.h"
#include "io/io_ring.h"
#include "tests/support/aligned_memory.h"
#include "tests/support/kernel_hooks.h"
#include "tests/support/scratch_file.h"

namespace weightfs {
namespace {

using testing::HasSubstr;

using AioQueueTest = KernelHooksTest;

TEST_F(AioQueueTest, BytesGoOutAndComeBack) {
  constexpr uint64_t kTransfers = 100;
  const ScratchFile scratch(kTransfers * kBlockSize);
  const UniqueFd file(open(scratch.path().c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file);
  const auto ring = std::move(IoRing::Create({.depth = 8}).value());
  AlignedMemory out(kTransfers * kBlockSize);
  AlignedMemory in(kTransfers * kBlockSize);
  for (size_t at = 0; at < out.size(); ++at) out.data()[at] = static_cast<std::byte>(at / 512 * 37);
  for (const bool write : {true, false}) {
    std::vector<IoRing::Transfer> transfers;
    for (uint64_t at = 0; at < out.size(); at += kBlockSize) {
      std::byte* data = (write ? out : in).data() + at;
      transfers.push_back(
          {.write = write, .descriptor = file.get(), .data = data, .size = kBlockSize, .offset = at, .owner = data});
    }
    ring->Queue(transfers);
    std::vector<void*> owners;
    while (!ring->idle()) {
      ring->Submit();
      std::array<IoRing::Completion, IoRing::kMaxBatch> completions;
      const size_t count = ring->Reap(completions, 1);
      for (const auto& completion : std::span(completions).first(count)) {
        EXPECT_EQ(completion.error_number, 0);
        EXPECT_EQ(completion.done, kBlockSize);
        owners.push_back(completion.transfer.owner);
      }
    }
    std::sort(owners.begin(), owners.end());
    EXPECT_EQ(std::unique(owners.begin(), owners.end()), owners.end());
    EXPECT_EQ(owners.size(), kTransfers);
  }
  EXPECT_EQ(std::memcmp(in.data(), out.data(), in.size()), 0);
}

TEST_F(AioQueueTest, ATimeoutEndsAWaitWithoutEvents) {
  const auto ring = std::move(IoRing::Create({.depth = 1}).value());
  std::array<IoRing::Completion, 1> completions;
  EXPECT_EQ(ring->Reap(completions, 1, std::chrono::microseconds(1)), 0U);
}

TEST_F(AioQueueTest, EachWakeEndsAWait) {
  const auto ring = std::move(IoRing::Create({.depth = 1, .wakeable = true}).value());
  std::array<IoRing::Completion, 1> completions;
  for (int i = 0; i < 3; ++i) {
    // Before the wait, repeatedly, and while another thread may be waiting.
    ring->Wake();
    ring->Wake();
    EXPECT_EQ(ring->Reap(completions, 1), 0U);
    std::jthread other([&] { ring->Wake(); });
    EXPECT_EQ(ring->Reap(completions, 1), 0U);
  }
}

// A submitter whose transfer the kernel refuses wakes the thread that waits for events.
TEST_F(AioQueueTest, AFailureIsReapedByAThreadThatWaitsAlready) {
  const auto ring = std::move(IoRing::Create({.depth = 2, .wakeable = true}).value());
  Mutex mutex;
  std::condition_variable changed;
  bool waits = false;
  OnWait([&] {
    MutexLock lock(mutex);
    waits = true;
    changed.notify_all();
    return true;
  });
  OnSubmit([](Controls) -> long { return -EBADF; });
  IoRing::Completion completion;
  std::jthread reaper([&] {
    while (ring->Reap({&completion, 1}, 1) == 0) {
    }
  });
  {
    MutexLock lock(mutex);
    while (!waits) changed.wait(lock.native());
  }
  const IoRing::Transfer transfer{.size = 1, .owner = &mutex};
  ring->Queue({&transfer, 1});
  EXPECT_EQ(ring->Submit(), 0U);
  reaper.join();
  EXPECT_EQ(completion.transfer.owner, &mutex);
  EXPECT_EQ(completion.error_number, EBADF);
}

TEST_F(AioQueueTest, WithFewEventsLeftTheRingIsSmallerOrTheErrorNamesTheLimit) {
  OnSetup([](int depth) { return depth > 8 ? -EAGAIN : 0; });
  const auto small = IoRing::Create({.depth = 100, .may_shrink = true});
  ASSERT_TRUE(small.has_value());
  EXPECT_EQ((*small)->depth(), 6U);
  const auto refused = IoRing::Create({.depth = 100});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().error_number(), EAGAIN);
  EXPECT_THAT(refused.error().what, HasSubstr("/proc/sys/fs/aio-max-nr is "));
  EXPECT_THAT(refused.error().what, HasSubstr("sysctl -w fs.aio-max-nr="));

  OnSetup([](int) { return -EAGAIN; });
  EXPECT_FALSE(IoRing::Create({.depth = 100, .may_shrink = true}).has_value());
  OnSetup([](int) { return -ENOSYS; });
  EXPECT_EQ(IoRing::Create({.depth = 100, .may_shrink = true}).error().error_number(), ENOSYS);
}

}  // namespace
}  // namespace weightfs
