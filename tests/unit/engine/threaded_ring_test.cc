// SPDX-License-Identifier: Apache-2.0
#include "engine/threaded_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/support/aligned_memory.h"
#include "tests/support/kernel_hooks.h"
#include "tests/support/recording_request.h"
#include "tests/support/scratch_file.h"

namespace weightfs {
namespace {

constexpr uint64_t kRequests = 64;
constexpr uint64_t kRequestSize = 16 * kBlockSize;

class ThreadedRingTest : public KernelHooksTest {
 protected:
  void SetUp() override {
    descriptor_ = open(file_.path().c_str(), O_RDWR | O_CLOEXEC | O_DIRECT);
    ASSERT_GE(descriptor_, 0) << std::strerror(errno);
    auto ring = ThreadedRing::Create({.descriptor = descriptor_, .path = "the-device", .queue_depth = 16});
    ASSERT_TRUE(ring.has_value()) << ToString(ring.error());
    ring_ = std::move(*ring);
    for (size_t at = 0; at < memory_.size(); ++at) memory_.bytes()[at] = static_cast<std::byte>(at / 512 * 37);
  }
  void TearDown() override {
    ring_.reset();
    close(descriptor_);
  }

  // Starts all requests at once. Returns the result of each.
  std::vector<Result<void>> Transfer(IoRequest::Operation operation, const AlignedMemory& memory) {
    std::vector<std::unique_ptr<RecordingRequest>> requests;
    std::vector<IoRequest*> pointers;
    for (uint64_t at = 0; at < memory.size(); at += kRequestSize) {
      requests.push_back(
          std::make_unique<RecordingRequest>(operation, ByteOffset{at}, memory.bytes().subspan(at, kRequestSize)));
      pointers.push_back(requests.back().get());
    }
    ring_->Submit(pointers);
    std::vector<Result<void>> results;
    for (auto& request : requests) results.push_back(request->Wait());
    for (auto& request : requests) EXPECT_EQ(request->completions(), 1);
    for (auto& request : requests) EXPECT_NE(request->thread(), std::this_thread::get_id());
    return results;
  }
  static std::vector<ErrorCode> Failures(const std::vector<Result<void>>& results) {
    std::vector<ErrorCode> codes;
    for (const auto& result : results) {
      if (!result.has_value()) codes.push_back(result.error().code);
    }
    return codes;
  }
  // Writes and reads back every byte.
  void ExpectRoundTrip() {
    EXPECT_TRUE(Failures(Transfer(IoRequest::Operation::kWrite, memory_)).empty());
    const AlignedMemory in(memory_.size());
    EXPECT_TRUE(Failures(Transfer(IoRequest::Operation::kRead, in)).empty());
    EXPECT_EQ(std::memcmp(in.data(), memory_.data(), in.size()), 0);
  }

  const ScratchFile file_{kRequests * kRequestSize};
  const AlignedMemory memory_{kRequests * kRequestSize};
  int descriptor_ = -1;
  std::unique_ptr<ThreadedRing> ring_;
};

TEST_F(ThreadedRingTest, APrefixAcceptedIsFollowedByTheRest) {
  int calls = 0;
  OnSubmit([&](Controls controls) {
    ++calls;
    return std::min<long>(static_cast<long>(controls.size()), calls % 3 + 1);
  });
  ExpectRoundTrip();
  EXPECT_GE(calls, 64);
}

TEST_F(ThreadedRingTest, AFullKernelIsTriedAgainAfterACompletion) {
  int calls = 0;
  OnSubmit([&](Controls controls) {
    return ++calls % 2 == 0 ? -EAGAIN : std::min<long>(static_cast<long>(controls.size()), 3);
  });
  ExpectRoundTrip();
}

TEST_F(ThreadedRingTest, AFullKernelIsTriedAgainAlsoWhenNoCompletionWillCome) {
  int refusals = 20;
  OnSubmit([&](Controls controls) { return refusals-- > 0 ? -EAGAIN : static_cast<long>(controls.size()); });
  ExpectRoundTrip();
  EXPECT_LE(refusals, 0);
}

TEST_F(ThreadedRingTest, ARefusedRequestFailsAloneAndOutsideSubmit) {
  int calls = 0;
  OnSubmit([&](Controls controls) {
    switch (++calls) {
      case 1: return static_cast<long>(-EINVAL);
      case 2: return 2L;
      case 3: return static_cast<long>(-ENOSPC);
      default: return static_cast<long>(controls.size());
    }
  });
  const auto failures = Failures(Transfer(IoRequest::Operation::kWrite, memory_));
  EXPECT_EQ(failures, (std::vector{ErrorCode::kIo, ErrorCode::kNoSpace}));
}

TEST_F(ThreadedRingTest, ShortTransfersAreContinuedFromTheLastWholeBlock) {
  int shortened = 0;
  OnSubmit([&](Controls controls) {
    for (KernelControl* control : controls) {
      if (control->size < 4 * kBlockSize) continue;
      // Some transfers end inside a block: 512 bytes of it must be sent again.
      control->size = kBlockSize * (1 + static_cast<uint64_t>(shortened % 3)) + (shortened % 2 == 0 ? 512 : 0);
      ++shortened;
    }
    return static_cast<long>(controls.size());
  });
  ExpectRoundTrip();
  EXPECT_GT(shortened, 128);
}

TEST_F(ThreadedRingTest, LessThanABlockIsNoProgress) {
  OnSubmit([](Controls controls) {
    controls[0]->size = 512;
    return 1L;
  });
  const auto failures = Failures(Transfer(IoRequest::Operation::kRead, memory_));
  EXPECT_EQ(failures, std::vector(kRequests, ErrorCode::kIo));
}

TEST_F(ThreadedRingTest, ErrorsInEventsReachTheirRequestsAlone) {
  int events = 0;
  OnEvent([&](KernelEvent& event) {
    switch (++events) {
      case 5: event.result = -ENOSPC; break;
      case 10: event.result = -EDQUOT; break;
      case 15: event.result = -EIO; break;
      case 20: event.result = 0; break;
      default: break;
    }
  });
  auto failures = Failures(Transfer(IoRequest::Operation::kWrite, memory_));
  std::sort(failures.begin(), failures.end());
  EXPECT_EQ(failures, (std::vector{ErrorCode::kIo, ErrorCode::kIo, ErrorCode::kNoSpace, ErrorCode::kNoSpace}));
}

TEST_F(ThreadedRingTest, InterruptedWaitsGoOn) {
  int waits = 0;
  OnWait([&] { return ++waits % 2 == 0; });
  ExpectRoundTrip();
}

TEST_F(ThreadedRingTest, StopReturnsAfterTheLastOnComplete) {
  std::vector<std::unique_ptr<RecordingRequest>> requests;
  for (uint64_t i = 0; i < kRequests; ++i) {
    requests.push_back(std::make_unique<RecordingRequest>(IoRequest::Operation::kRead, ByteOffset{i * kRequestSize},
                                                          memory_.bytes().subspan(i * kRequestSize, kRequestSize)));
    IoRequest* pointer = requests.back().get();
    ring_->Submit({&pointer, 1});
  }
  ring_->Stop();
  for (auto& request : requests) EXPECT_EQ(request->completions(), 1);
}

}  // namespace
}  // namespace weightfs
