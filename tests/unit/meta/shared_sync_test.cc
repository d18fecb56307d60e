// SPDX-License-Identifier: Apache-2.0
#include "meta/shared_sync.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>
#include <vector>

namespace weightfs {
namespace {

// A sync that stays under way until the test releases it.
class HeldSync {
 public:
  Result<void> Run() {
    if (++calls_ == 1) {
      begun_.count_down();
      go_.wait();
    }
    return result_;
  }
  void WaitUntilBegun() { begun_.wait(); }
  void LetGo() { go_.count_down(); }
  void FailWith(Error error) { result_ = std::move(error); }
  int calls() const { return calls_.load(); }

 private:
  std::atomic<int> calls_{0};
  std::latch begun_{1}, go_{1};
  Result<void> result_;
};

void WaitUntilWaiting(const SharedSync& sync, uint64_t callers) {
  while (sync.waiting() < callers) std::this_thread::yield();
}

TEST(SharedSyncTest, NothingWrittenNeedsNoSync) {
  int calls = 0;
  SharedSync sync([&] {
    ++calls;
    return Result<void>();
  });
  EXPECT_TRUE(sync.Sync().has_value());
  EXPECT_EQ(calls, 0);
  sync.NoteWrite();
  EXPECT_TRUE(sync.Sync().has_value());
  EXPECT_TRUE(sync.Sync().has_value());
  EXPECT_EQ(calls, 1);
}

TEST(SharedSyncTest, CallersDuringASyncShareTheNextOne) {
  constexpr int kCallers = 16;
  HeldSync held;
  SharedSync sync([&] { return held.Run(); });
  sync.NoteWrite();
  std::vector<std::jthread> callers;
  callers.emplace_back([&] { EXPECT_TRUE(sync.Sync().has_value()); });
  held.WaitUntilBegun();
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&] {
      sync.NoteWrite();
      EXPECT_TRUE(sync.Sync().has_value());
    });
  }
  WaitUntilWaiting(sync, kCallers);
  held.LetGo();
  callers.clear();
  EXPECT_EQ(held.calls(), 2);
}

TEST(SharedSyncTest, ACallWithoutNewWritesIsServedByTheSyncUnderWay) {
  HeldSync held;
  SharedSync sync([&] { return held.Run(); });
  sync.NoteWrite();
  std::vector<std::jthread> callers;
  callers.emplace_back([&] { EXPECT_TRUE(sync.Sync().has_value()); });
  held.WaitUntilBegun();
  callers.emplace_back([&] { EXPECT_TRUE(sync.Sync().has_value()); });
  WaitUntilWaiting(sync, 1);
  held.LetGo();
  callers.clear();
  EXPECT_EQ(held.calls(), 1);
}

TEST(SharedSyncTest, AFailureReachesEveryCallerAndIsNeverTriedAgain) {
  constexpr int kCallers = 4;
  HeldSync held;
  held.FailWith(Error{ErrorCode::kNoSpace, "the log's device is full"});
  SharedSync sync([&] { return held.Run(); });
  sync.NoteWrite();
  const auto expect_failure = [&] {
    const auto result = sync.Sync();
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::kNoSpace);
    EXPECT_EQ(result.error().what, "the log's device is full");
  };
  std::vector<std::jthread> callers;
  callers.emplace_back(expect_failure);
  held.WaitUntilBegun();
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&] {
      sync.NoteWrite();
      expect_failure();
    });
  }
  WaitUntilWaiting(sync, kCallers);
  held.LetGo();
  callers.clear();
  EXPECT_EQ(sync.Sync().error().code, ErrorCode::kReadOnly);
  EXPECT_EQ(held.calls(), 1);
}

}  // namespace
}  // namespace weightfs
