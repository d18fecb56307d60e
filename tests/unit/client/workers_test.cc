// SPDX-License-Identifier: Apache-2.0
#include "client/workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <memory>
#include <vector>

#include "tests/support/thread_state.h"

namespace weightfs::client {
namespace {

using namespace std::chrono_literals;

constexpr auto kForEver = std::chrono::hours(24);

TEST(WorkersTest, ShortTasksRunInOrderAndOneAtATime) {
  Workers workers("test-workers", 8, kForEver);
  std::vector<int> ran;
  for (int i = 0; i < 100; ++i) {
    workers.Run([&, i] { ran.push_back(i); });
  }
  workers.Stop();
  ASSERT_EQ(ran.size(), 100U);
  EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
}

TEST(WorkersTest, TasksThatBlockHoldUpOthersOnlyWhenTheMaximumIsBlocked) {
  for (const auto patience : {0ms, 1ms}) {
    Workers workers("test-workers", 3, patience);
    std::latch go(1), blocked(2), ended(1), third(1), behind(1);
    for (int i = 0; i < 2; ++i) {
      workers.Run([&] {
        blocked.count_down();
        go.wait();
      });
    }
    blocked.wait();
    workers.Run([&] { ended.count_down(); });
    ended.wait();
    workers.Run([&] {
      third.count_down();
      go.wait();
    });
    third.wait();
    workers.Run([&] { behind.count_down(); });
    WaitUntilBlocked(ThreadsNamed("test-workers"));
    EXPECT_EQ(ThreadsNamed("test-workers").size(), 3U);
    EXPECT_FALSE(behind.try_wait());
    go.count_down();
    behind.wait();
  }
}

TEST(WorkersTest, AllTasksHaveRunAfterStop) {
  std::atomic<int> ran = 0;
  Workers workers("test-workers", 2);
  for (int i = 0; i < 20; ++i) {
    workers.Run([&] {
      workers.Run([&] { ++ran; });
      ++ran;
    });
  }
  workers.Stop();
  EXPECT_EQ(ran, 40);
  EXPECT_TRUE(ThreadsNamed("test-workers").empty());
}

TEST(WorkersTest, ATaskMayDestroyTheWorkers) {
  auto workers = std::make_unique<Workers>("test-workers", 2);
  std::latch destroyed(1), later(1);
  workers->Run([&] {
    workers->Run([&] { later.count_down(); });
    workers.reset();
    destroyed.count_down();
  });
  destroyed.wait();
  later.wait();
}

}  // namespace
}  // namespace weightfs::client
