// SPDX-License-Identifier: Apache-2.0
#include "fs/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>

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
    Executor executor(3, 1);
    for (uint32_t i = 0; i < 1000; ++i) executor.Run(i % 5, [&done] { ++done; });
  }
  EXPECT_EQ(done, 1000);
}

TEST(Executor, NeverRunsATaskOnTheCaller) {
  Gate gate;
  std::promise<std::thread::id> ran_on;
  Executor executor(1);
  executor.Run(1, gate.Task());
  for (int i = 0; i < 1000; ++i) executor.Run(1, [] {});
  executor.Run(1, [&ran_on] { ran_on.set_value(std::this_thread::get_id()); });
  gate.Open();
  EXPECT_NE(ran_on.get_future().get(), std::this_thread::get_id());
}

TEST(Executor, UsersTakeTurns) {
  std::vector<uint32_t> order;
  Gate gate;
  {
    Executor executor(1);
    executor.Run(1, gate.Task());
    gate.WaitForStart();
    for (int i = 0; i < 100; ++i) executor.Run(1, [&order] { order.push_back(1); });
    for (int i = 0; i < 2; ++i) executor.Run(2, [&order] { order.push_back(2); });
    executor.Run(3, [&order] { order.push_back(3); });
    gate.Open();
  }
  ASSERT_EQ(order.size(), 103U);
  // The running task was the first turn of user 1.
  EXPECT_EQ(std::vector<uint32_t>(order.begin(), order.begin() + 6), (std::vector<uint32_t>{2, 3, 1, 2, 1, 1}));
}

TEST(Executor, OneUserLeavesAThreadToOthers) {
  Gate first, second, third;
  std::promise<void> ran;
  Executor executor(3, 1);
  executor.Run(1, first.Task());
  executor.Run(1, second.Task());
  executor.Run(1, third.Task());
  first.WaitForStart();
  second.WaitForStart();
  executor.Run(2, [&ran] { ran.set_value(); });
  ran.get_future().wait();  // beside the two tasks of user 1
  first.Open();
  third.WaitForStart();
  second.Open();
  third.Open();
}

}  // namespace
}  // namespace weightfs
