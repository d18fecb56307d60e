// SPDX-License-Identifier: Apache-2.0
#include "common/out_of_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <limits>
#include <vector>

namespace weightfs {
namespace {

constexpr size_t kTooMuch = std::numeric_limits<ptrdiff_t>::max() / 2;

class OutOfMemory : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "the operator new of the sanitizers ends the process itself";
#endif
  }
};

void Allocate(size_t size) {
  std::vector<char> memory;
  memory.reserve(size);
}

TEST_F(OutOfMemory, EndsTheProcessLikeAKillWithALine) {
  EXPECT_EXIT((EndWhenOutOfMemory(), Allocate(kTooMuch)), testing::KilledBySignal(SIGKILL),
              "critical: out of memory.*mount the store");
}

TEST_F(OutOfMemory, IsAnErrorOfAnAllocationThatMayFail) {
  const auto try_it = [] {
    EndWhenOutOfMemory();
    const bool failed = TryAllocate([] { Allocate(kTooMuch); }).error().code == ErrorCode::kNoMemory;
    _exit(failed && TryAllocate([] { Allocate(1); }) ? 0 : 1);
  };
  EXPECT_EXIT(try_it(), testing::ExitedWithCode(0), "");
}

TEST_F(OutOfMemory, EndsTheProcessAgainAfterAnAllocationThatMightFail) {
  const auto try_it = [] {
    EndWhenOutOfMemory();
    static_cast<void>(TryAllocate([] { Allocate(kTooMuch); }).has_value());
    Allocate(kTooMuch);
  };
  EXPECT_EXIT(try_it(), testing::KilledBySignal(SIGKILL), "out of memory");
}

}  // namespace
}  // namespace weightfs
