// SPDX-License-Identifier: Apache-2.0
#include "fs/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <vector>

namespace weightfs {
namespace {

// A task that runs until the test ends it. Outlives its executor.
class Gate {
 public:
  std::function<void()> Task() {
    return [this] {
      started_.set_value();
      opened_.wait();
    };
  }
  void WaitForStart() { started_.get_future().wait(); }
  void Open() { open_.set_value(); }

 private:
  std::promise<void> started_, open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

TEST(Executor, RunsEverythingBeforeItEnds) {
  std::atomic<int> done{0};
  {
    Executor executor(3);
    ASSERT_TRUE(executor.Start());
    for (uint32_t i = 0; i < 1000; ++i) executor.Run(i % 5, [&done] { ++done; });
  }
  EXPECT_EQ(done, 1000);
}

TEST(Executor, NeverRunsATaskOnTheCaller) {
  Gate gate;
  std::promise<std::thread::id> ran_on;
  Executor executor(1);
  ASSERT_TRUE(executor.Start());
  executor.Run(1, gate.Task());
  for (int i = 0; i < 1000; ++i) executor.Run(1, [] {});
  executor.Run(1, [&ran_on] { ran_on.set_value(std::this_thread::get_id()); });
  gate.Open();
  EXPECT_NE(ran_on.get_future().get(), std::this_thread::get_id());
}

TEST(Executor, TheTasksOfAUserRunInTheirOrder) {
  std::vector<int> order, expected;
  {
    Executor executor(1);
    ASSERT_TRUE(executor.Start());
    for (int i = 0; i < 100; ++i) {
      expected.push_back(i);
      executor.Run(1, [&order, i] { order.push_back(i); });
    }
  }
  EXPECT_EQ(order, expected);
}

TEST(Executor, AUserOccupiesAFewThreadsAndNoneOfOthers) {
  Gate first, second, third;
  constexpr uint32_t kOthers = 20;
  std::vector<Gate> others(kOthers);
  std::atomic<bool> ran_third{false};
  {
    Executor executor(2);
    ASSERT_TRUE(executor.Start());
    executor.Run(1, first.Task());
    executor.Run(1, second.Task());
    first.WaitForStart();
    second.WaitForStart();
    executor.Run(1, [&ran_third] { ran_third = true; });
    for (uint32_t user = 2; user < 2 + kOthers; ++user) {
      executor.Run(user, others[user - 2].Task());
      others[user - 2].WaitForStart();  // beside the tasks of all others
    }
    EXPECT_FALSE(ran_third);
    for (Gate& gate : others) gate.Open();
    first.Open();
    second.Open();
  }
  EXPECT_TRUE(ran_third);
}

TEST(Executor, APausedTaskOccupiesNoThread) {
  Gate busy;
  std::promise<void> ran, later;
  Executor executor(1);
  ASSERT_TRUE(executor.Start());
  executor.RunAfter(std::chrono::milliseconds(20), 1, [&later] { later.set_value(); });
  executor.Run(1, [&ran] { ran.set_value(); });
  ran.get_future().wait();
  executor.Run(2, busy.Task());
  busy.WaitForStart();
  later.get_future().wait();  // although the thread is busy
  busy.Open();
}

TEST(Executor, PausedTasksRunInTheOrderOfTheirEnds) {
  std::vector<int> order;
  {
    Executor executor(1);
    ASSERT_TRUE(executor.Start());
    executor.RunAfter(std::chrono::hours(2), 1, [&order] { order.push_back(2); });
    executor.RunAfter(std::chrono::hours(1), 1, [&order] { order.push_back(1); });
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(Executor, PausesEndWithIt) {
  std::atomic<int> done{0};
  {
    Executor executor(1);
    ASSERT_TRUE(executor.Start());
    executor.RunAfter(std::chrono::hours(1), 1, [&done] { ++done; });
  }
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace weightfs
