// SPDX-License-Identifier: Apache-2.0
// The ring on a fake kernel whose results the test controls.
#include <algorithm>
#include <array>
#include <cerrno>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>

#include "io/io_ring.h"

namespace weightfs {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kSize = 4096;
using Pause = std::optional<std::chrono::nanoseconds>;

class FakeKernel final : public KernelQueue {
 public:
  void Prepare(unsigned slot, const IoRing::Transfer& transfer, uint64_t done) override {
    prepared[slot] = {transfer.offset + done, transfer.size - done};
    EXPECT_FALSE(in_kernel.contains(slot)) << "slot " << slot << " is in the kernel";
  }
  int Submit(std::span<const unsigned> slots) override {
    batches.push_back(slots.size());
    int rc = static_cast<int>(slots.size());
    if (!answers.empty()) {
      rc = std::min(rc, answers.front());
      answers.erase(answers.begin());
    }
    for (int i = 0; i < rc; ++i) {
      const unsigned slot = slots[static_cast<size_t>(i)];
      in_kernel[slot] = prepared[slot];
    }
    return rc;
  }
  int Wait(size_t /*minimum*/, std::span<Event> events, Pause timeout) override {
    timeouts.push_back(timeout);
    if (wait_error != 0) return -std::exchange(wait_error, 0);
    size_t count = 0;
    while (count < events.size() && !ended.empty()) {
      const auto [offset, result] = ended.front();
      ended.erase(ended.begin());
      const auto found = std::find_if(in_kernel.begin(), in_kernel.end(),
                                      [offset = offset](const auto& entry) { return entry.second.first == offset; });
      EXPECT_NE(found, in_kernel.end()) << "nothing at offset " << offset << " is in the kernel";
      if (found == in_kernel.end()) continue;
      events[count++] = {found->first, result};
      in_kernel.erase(found);
    }
    return static_cast<int>(count);
  }
  void Wake() override { ++wakes; }
  // The offsets of the transfers in the kernel.
  std::vector<uint64_t> Offsets() const {
    std::vector<uint64_t> offsets;
    for (const auto& [slot, range] : in_kernel) offsets.push_back(range.first);
    std::sort(offsets.begin(), offsets.end());
    return offsets;
  }

  std::vector<int> answers;                                     // results of Submit; afterwards everything is accepted
  std::vector<std::pair<uint64_t, int64_t>> ended;              // completions for Wait: offset and result
  int wait_error = 0;                                           // result of the next Wait
  std::vector<size_t> batches;                                  // sizes of batches passed to Submit
  std::vector<Pause> timeouts;                                  // timeouts passed to Wait
  std::map<unsigned, std::pair<uint64_t, uint64_t>> prepared;   // offset and size
  std::map<unsigned, std::pair<uint64_t, uint64_t>> in_kernel;  // likewise
  int wakes = 0;
};

class IoRingTest : public testing::Test {
 protected:
  ~IoRingTest() override {
    // Completes the remaining transfers, because the ring asserts that none are in the kernel.
    while (ring_.in_kernel() > 0) {
      for (const uint64_t offset : kernel_.Offsets()) kernel_.ended.emplace_back(offset, -EIO);
      Reap();
    }
  }

  // Queues transfers. Number i begins at i * kSize and has the owner &owners_[i].
  void Queue(size_t count, uint64_t unit = 512) {
    for (size_t i = 0; i < count; ++i, ++queued_) {
      const IoRing::Transfer transfer{
          .size = kSize, .offset = queued_ * kSize, .unit = unit, .owner = &owners_.at(queued_)};
      ring_.Queue({&transfer, 1});
    }
  }
  // Number, bytes and errno of each completion.
  using Completed = std::tuple<size_t, uint64_t, int>;
  std::vector<Completed> Reap(Pause timeout = std::nullopt) {
    std::array<IoRing::Completion, IoRing::kMaxBatch> completions;
    const size_t count = ring_.Reap(completions, 1, timeout);
    std::vector<Completed> out;
    for (const auto& completion : std::span(completions).first(count)) {
      out.emplace_back(static_cast<const char*>(completion.transfer.owner) - owners_.data(), completion.done,
                       completion.error_number);
    }
    return out;
  }

  // Passes a queue to the ring, while the test keeps the kernel behind it.
  class Forward final : public KernelQueue {
   public:
    explicit Forward(FakeKernel& kernel) : kernel_(kernel) {}
    void Prepare(unsigned slot, const IoRing::Transfer& transfer, uint64_t done) override {
      kernel_.Prepare(slot, transfer, done);
    }
    int Submit(std::span<const unsigned> slots) override { return kernel_.Submit(slots); }
    int Wait(size_t minimum, std::span<Event> events, Pause timeout) override {
      return kernel_.Wait(minimum, events, timeout);
    }
    void Wake() override { kernel_.Wake(); }

   private:
    FakeKernel& kernel_;
  };

  static constexpr unsigned kDepth = 4;
  std::array<char, 256> owners_{};
  size_t queued_ = 0;
  FakeKernel kernel_;
  IoRing ring_{kDepth, std::make_unique<Forward>(kernel_)};
};

TEST_F(IoRingTest, NoMoreThanItsDepthIsInTheKernel) {
  Queue(6);
  EXPECT_EQ(ring_.Submit(), kDepth);
  EXPECT_EQ(ring_.in_kernel(), kDepth);
  EXPECT_EQ(ring_.queued(), 2U);
  EXPECT_EQ(ring_.Submit(), 0U);
  kernel_.ended = {{2 * kSize, kSize}};
  EXPECT_THAT(Reap(), ElementsAre(Completed(2, kSize, 0)));
  EXPECT_EQ(ring_.Submit(), 1U);
  EXPECT_THAT(kernel_.Offsets(), ElementsAre(0, kSize, 3 * kSize, 4 * kSize));
}

TEST_F(IoRingTest, LimitAndBatchBoundWhatIsSubmitted) {
  Queue(4);
  EXPECT_EQ(ring_.Submit(0), 0U);
  EXPECT_EQ(ring_.Submit(3, 1), 3U);
  EXPECT_THAT(kernel_.batches, ElementsAre(1, 1, 1));
  EXPECT_EQ(ring_.queued(), 1U);
}

TEST_F(IoRingTest, AnAcceptedPrefixIsFollowedByTheRestInOrder) {
  Queue(4);
  kernel_.answers = {1, -EINTR, 2};
  EXPECT_EQ(ring_.Submit(), 4U);
  EXPECT_THAT(kernel_.batches, ElementsAre(4, 3, 3, 1));
  EXPECT_EQ(kernel_.Offsets().size(), 4U);
}

TEST_F(IoRingTest, ARefusalWithTransfersInTheKernelWaitsForACompletion) {
  Queue(2);
  ring_.Submit(1);
  for (const int answer : {-EAGAIN, 0}) {
    kernel_.answers = {answer};
    EXPECT_EQ(ring_.Submit(), 0U);
    EXPECT_EQ(ring_.queued(), 1U);
    EXPECT_THAT(Reap(), IsEmpty());
    EXPECT_EQ(kernel_.timeouts.back(), std::nullopt);
  }
}

TEST_F(IoRingTest, ARefusalWithNothingInTheKernelMakesReapPause) {
  Queue(1);
  kernel_.answers = {-EAGAIN, 0};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ring_.Submit(), 0U);
    EXPECT_FALSE(ring_.idle());
    EXPECT_THAT(Reap(), IsEmpty());
    ASSERT_TRUE(kernel_.timeouts.back().has_value());
    EXPECT_GT(*kernel_.timeouts.back(), std::chrono::nanoseconds(0));
  }
  EXPECT_EQ(ring_.Submit(), 1U);
  Reap();
  EXPECT_EQ(kernel_.timeouts.back(), std::nullopt);
}

TEST_F(IoRingTest, TheCallersShorterTimeoutStays) {
  Queue(1);
  kernel_.answers = {-EAGAIN};
  ring_.Submit();
  Reap(std::chrono::nanoseconds(0));
  EXPECT_EQ(kernel_.timeouts.back(), std::chrono::nanoseconds(0));
}

TEST_F(IoRingTest, ARefusedTransferFailsAloneAndThroughReap) {
  Queue(3);
  kernel_.answers = {-EINVAL, 1, -ENOSPC};
  EXPECT_EQ(ring_.Submit(), 1U);
  EXPECT_THAT(kernel_.Offsets(), ElementsAre(kSize));
  EXPECT_FALSE(ring_.idle());
  EXPECT_THAT(Reap(), ElementsAre(Completed(0, 0, EINVAL), Completed(2, 0, ENOSPC)));
  EXPECT_THAT(kernel_.timeouts, IsEmpty()) << "failures are not waited for";
}

TEST_F(IoRingTest, AShortTransferContinuesFromItsLastWholeUnit) {
  Queue(1, 512);
  ring_.Submit();
  kernel_.ended = {{0, 1100}};
  EXPECT_THAT(Reap(), IsEmpty());
  EXPECT_EQ(ring_.Submit(), 1U);
  EXPECT_THAT(kernel_.Offsets(), ElementsAre(1024));
  EXPECT_EQ(kernel_.in_kernel.begin()->second.second, kSize - 1024);
  kernel_.ended = {{1024, static_cast<int64_t>(kSize - 1024)}};
  EXPECT_THAT(Reap(), ElementsAre(Completed(0, kSize, 0)));
  EXPECT_TRUE(ring_.idle());
}

TEST_F(IoRingTest, TheRestOfAShortTransferGoesBeforeOthers) {
  Queue(6, 1);
  ring_.Submit();
  kernel_.ended = {{kSize, 100}, {2 * kSize, kSize}};
  EXPECT_THAT(Reap(), ElementsAre(Completed(2, kSize, 0)));
  EXPECT_EQ(ring_.Submit(1), 1U);
  EXPECT_THAT(kernel_.Offsets(), testing::Contains(kSize + 100));
}

TEST_F(IoRingTest, LessThanAUnitOfProgressCompletesWithTheBytesDone) {
  Queue(1, 512);
  ring_.Submit();
  kernel_.ended = {{0, 1024}};
  EXPECT_THAT(Reap(), IsEmpty());
  ring_.Submit();
  kernel_.ended = {{1024, 100}};
  EXPECT_THAT(Reap(), ElementsAre(Completed(0, 1124, 0)));
}

TEST_F(IoRingTest, AnErrorReportsTheBytesDoneBefore) {
  Queue(2, 512);
  ring_.Submit();
  kernel_.ended = {{0, 512}, {kSize, -EIO}};
  EXPECT_THAT(Reap(), ElementsAre(Completed(1, 0, EIO)));
  ring_.Submit();
  kernel_.ended = {{512, -ENOSPC}};
  EXPECT_THAT(Reap(), ElementsAre(Completed(0, 512, ENOSPC)));
}

TEST_F(IoRingTest, WithdrawnTransfersNeverReachTheKernel) {
  Queue(4);
  ring_.Submit(1);
  const auto owners = ring_.Withdraw([&](void* owner) { return owner != &owners_[2]; });
  EXPECT_THAT(owners, ElementsAre(&owners_[1], &owners_[3]));
  EXPECT_EQ(ring_.Submit(), 1U);
  EXPECT_THAT(kernel_.Offsets(), ElementsAre(0, 2 * kSize));
}

TEST_F(IoRingTest, ASignalEndsAWaitWithoutCompletions) {
  Queue(1);
  ring_.Submit();
  kernel_.wait_error = EINTR;
  EXPECT_THAT(Reap(), IsEmpty());
  EXPECT_EQ(ring_.in_kernel(), 1U);
}

}  // namespace
}  // namespace weightfs
