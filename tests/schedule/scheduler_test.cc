// SPDX-License-Identifier: Apache-2.0
#include "tests/schedule/scheduler.h"

#include <gtest/gtest.h>
#include <semaphore.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <vector>

namespace weightfs::schedule {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kSeeds = 200;

// Two threads add to a number, and give up its lock between the read and the write.
int LoseAnUpdate() {
  std::mutex mutex;
  int number = 0;
  const auto add = [&] {
    std::unique_lock lock(mutex);
    const int read = number;
    lock.unlock();
    lock.lock();
    number = read + 1;
  };
  std::thread first(add), second(add);
  first.join();
  second.join();
  return number;
}

// A container whose order is that of addresses.
void OrderByAddress() {
  std::unordered_set<const int*> addresses;
  std::vector<std::unique_ptr<int>> numbers;
  for (int number = 0; number < 50; ++number) {
    numbers.push_back(std::make_unique<int>(number));
    addresses.insert(numbers.back().get());
  }
  for (const int* number : addresses) Note(static_cast<uint64_t>(*number));
}

TEST(Scheduler, SomeSeedsFindALostUpdateAndEachRepeatsIt) {
  std::set<int> found;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    int number = 0;
    const Trace trace = RunSeed(seed, [&] { number = LoseAnUpdate(); });
    found.insert(number);
    int again = 0;
    EXPECT_EQ(RunSeed(seed, [&] { again = LoseAnUpdate(); }).hash, trace.hash);
    EXPECT_EQ(again, number) << "seed " << seed;
  }
  EXPECT_EQ(found, (std::set<int>{1, 2}));
}

TEST(Scheduler, DISABLED_PrintTraces) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Trace trace = RunSeed(seed, [] {
      LoseAnUpdate();
      OrderByAddress();
      uint64_t random = 0;
      EXPECT_EQ(getrandom(&random, sizeof(random), 0), static_cast<ssize_t>(sizeof(random)));
      Note(random);
      Note(static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()));
    });
    std::printf("trace %lx\n", trace.hash);
  }
}

std::string TracesOfAProcess() {
  const std::string command = "exec /proc/" + std::to_string(getpid()) +
                              "/exe --gtest_also_run_disabled_tests --gtest_filter=Scheduler.DISABLED_PrintTraces";
  FILE* const output = popen(command.c_str(), "r");
  std::string traces;
  for (std::array<char, 200> line; std::fgets(line.data(), line.size(), output) != nullptr;) {
    if (std::string_view(line.data()).starts_with("trace")) traces += line.data();
  }
  EXPECT_EQ(pclose(output), 0);
  return traces;
}

TEST(Scheduler, ASeedHasTheSameTraceInEachProcess) {
  if (!FixesAddresses()) GTEST_SKIP() << "AddressSanitizer has its own memory";
  const std::string traces = TracesOfAProcess();
  EXPECT_GT(traces.size(), 200U);
  EXPECT_EQ(TracesOfAProcess(), traces);
}

TEST(Scheduler, TimeIsVirtual) {
  const auto before = steady_clock::now();
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    RunSeed(seed, [] {
      const auto began = steady_clock::now();
      std::thread sleeper([] { std::this_thread::sleep_for(std::chrono::hours(1)); });
      std::mutex mutex;
      std::condition_variable never;
      std::unique_lock lock(mutex);
      EXPECT_EQ(never.wait_until(lock, began + std::chrono::minutes(1)), std::cv_status::timeout);
      EXPECT_LT(steady_clock::now() - began, std::chrono::minutes(2));
      sleeper.join();
      EXPECT_GE(steady_clock::now() - began, std::chrono::hours(1));
    });
  }
  EXPECT_LT(steady_clock::now() - before, std::chrono::minutes(30));
}

TEST(Scheduler, EveryPrimitiveWorks) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RunSeed(seed, [] {
      std::promise<int> promise;
      std::shared_mutex shared;
      sem_t semaphore;
      sem_init(&semaphore, 0, 0);
      std::atomic<int> flag{0};
      int guarded = 0;
      std::thread reader([&] {
        while (true) {
          std::shared_lock lock(shared);
          if (guarded == 1) break;
          lock.unlock();
          std::this_thread::yield();
        }
        promise.set_value(7);
        flag.wait(0);
        sem_post(&semaphore);
      });
      {
        std::unique_lock lock(shared);
        guarded = 1;
      }
      EXPECT_EQ(promise.get_future().get(), 7);
      flag.store(1);
      flag.notify_all();
      sem_wait(&semaphore);
      reader.join();
      sem_destroy(&semaphore);
      EXPECT_EQ(std::async(std::launch::async, [] { return 3; }).get(), 3);
    });
  }
}

TEST(SchedulerDeathTest, ADeadlockIsReported) {
  const auto lock_in_both_orders = [] {
    std::mutex one, two;
    const auto lock_both = [](std::mutex& first, std::mutex& second) {
      const std::lock_guard outer(first);
      const std::lock_guard inner(second);
    };
    std::thread thread([&] { lock_both(one, two); });
    lock_both(two, one);
    thread.join();
  };
  EXPECT_EXIT(for (uint64_t seed = 1; seed <= kSeeds; ++seed) RunSeed(seed, lock_in_both_orders),
              testing::ExitedWithCode(kDeadlock), "deadlock.*waits for a mutex.*which thread 1 holds");
}

// The notification is lost if it comes between the look and the wait.
TEST(SchedulerDeathTest, ALostNotificationIsADeadlock) {
  const auto wait_without_lock = [] {
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<bool> done{false};
    std::thread thread([&] {
      done = true;
      changed.notify_one();
    });
    std::unique_lock lock(mutex);
    if (!done) changed.wait(lock);
    lock.unlock();
    thread.join();
  };
  EXPECT_EXIT(for (uint64_t seed = 1; seed <= kSeeds; ++seed) RunSeed(seed, wait_without_lock),
              testing::ExitedWithCode(kDeadlock), "deadlock.*waits for a condition");
}

TEST(SchedulerDeathTest, ARunThatDoesNotEndIsReported) {
  EXPECT_EXIT(RunSeed(1,
                  [] {
                    std::atomic<bool> never{false};
                    while (!never) std::this_thread::yield();
                  }),
              testing::ExitedWithCode(kDeadlock), "no end");
}

}  // namespace
}  // namespace weightfs::schedule
