// SPDX-License-Identifier: Apache-2.0
#include "tests/support/thread_state.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <future>
#include <latch>
#include <thread>

namespace weightfs {
namespace {

TEST(ThreadStateTest, AThreadThatWaitsForAnotherThreadIsBlocked) {
  std::promise<pid_t> started;
  std::latch go(1);
  std::thread waiter([&] {
    pthread_setname_np(pthread_self(), "waiter");
    started.set_value(gettid());
    go.wait();
  });
  const pid_t thread = started.get_future().get();
  EXPECT_EQ(ThreadsNamed("waiter"), std::vector<pid_t>{thread});
  WaitUntilBlocked({thread});
  EXPECT_TRUE(SleepsOfBlocked(thread));
  go.count_down();
  waiter.join();
}

TEST(ThreadStateTest, AThreadThatWaitsForTheKernelIsAsleepAndNotBlocked) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::promise<pid_t> started;
  std::thread reader([&] {
    started.set_value(gettid());
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 0);
  });
  const pid_t thread = started.get_future().get();
  WaitUntilAsleep(thread);
  EXPECT_FALSE(SleepsOfBlocked(thread));
  close(ends[1]);
  reader.join();
  close(ends[0]);
}

TEST(ThreadStateTest, ARunningThreadIsNotBlocked) { EXPECT_FALSE(SleepsOfBlocked(gettid())); }

TEST(ThreadStateTest, AnEndedThreadIsNotWaitedFor) {
  pid_t ended = 0;
  std::thread([&] { ended = gettid(); }).join();
  WaitUntilAsleep(ended);
  WaitUntilBlocked({ended});
}

TEST(ThreadStateTest, AThreadMayEndWhileItIsLookedAt) {
  for (int i = 0; i < 3000; ++i) {
    auto call = StartUntilBlocked([i] { return i; });
    EXPECT_TRUE(HasEnded(call));
    EXPECT_EQ(call.get(), i);
  }
}

}  // namespace
}  // namespace weightfs
