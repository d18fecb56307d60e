// SPDX-License-Identifier: Apache-2.0
#include "fs/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace weightfs {
namespace {

TEST(Executor, RunsEverythingBeforeItEnds) {
  std::atomic<int> done{0};
  {
    Executor executor(3, 8);
    for (int i = 0; i < 1000; ++i) executor.Run([&done] { ++done; });
  }
  EXPECT_EQ(done, 1000);
}

TEST(Executor, FullQueueSlowsTheCallerDownInsteadOfGrowing) {
  std::promise<void> go;
  std::shared_future<void> gate = go.get_future().share();
  std::promise<void> started;
  Executor executor(1, 1);
  executor.Run([&started, gate] {
    started.set_value();
    gate.wait();
  });
  started.get_future().wait();
  executor.Run([gate] { gate.wait(); });  // fills the queue
  std::thread::id ran_on;
  executor.Run([&ran_on] { ran_on = std::this_thread::get_id(); });
  EXPECT_EQ(ran_on, std::this_thread::get_id());

  std::promise<std::thread::id> elsewhere;
  executor.RunElsewhere([&elsewhere] { elsewhere.set_value(std::this_thread::get_id()); });
  go.set_value();
  EXPECT_NE(elsewhere.get_future().get(), std::this_thread::get_id());
}

}  // namespace
}  // namespace weightfs
