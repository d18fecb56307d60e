// SPDX-License-Identifier: Apache-2.0
// Callbacks run on a thread that has nothing else to do, and one that blocks holds up no operation.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "client/handle.h"
#include "client/ring.h"
#include "tests/support/thread_state.h"
#include "tests/unit/client/files.h"
#include "tests/unit/client/operations.h"

namespace weightfs::client {
namespace {

std::unique_ptr<Handle> Make(unsigned rings = 1) {
  return Handle::Create({.block_size = 4096, .queue_depth = 4, .intra_op_parallelism = rings}).value();
}

// Expects that operations of each kind end.
void ExpectOthersEnd(Handle& handle, const Folder& folder) {
  Bytes bytes = RandomBytes(300'001, 1);
  Bytes target(bytes.size());
  const std::string path = folder / "other";
  EXPECT_TRUE(handle.Write(path, View(bytes)).has_value());
  EXPECT_TRUE(handle.Read(path, View(target)).has_value());
  EXPECT_EQ(target, bytes);
  // The second one waits for the first one, and opens the file again.
  const auto first = handle.StartWrite(path, View(bytes), {.durable = true, .atomic = true}).value();
  const auto second = handle.StartRead(path, View(target)).value();
  EXPECT_TRUE(second->Wait());
  EXPECT_TRUE(first->done());
  EXPECT_FALSE(second->error());
}

struct Standing {
  const Folder folder;
  Bytes bytes = RandomBytes(50'000, 2);
  const std::unique_ptr<Handle> handle = Make();
  StandingWrite write{*handle, folder / "standing", bytes};
};

TEST(CallbacksTest, AReportOfProgressThatBlocksDelaysNoOtherOperation) {
  Standing standing;
  ExpectOthersEnd(*standing.handle, standing.folder);
  EXPECT_FALSE(standing.write->done());
}

TEST(CallbacksTest, ACallbackOfAnEndThatBlocksDelaysNoOtherOperation) {
  std::latch go(1), stands(1);
  Standing standing;
  standing.write->OnDone([&] {
    stands.count_down();
    go.wait();
  });
  standing.write.LetGo();
  stands.wait();
  ExpectOthersEnd(*standing.handle, standing.folder);
  go.count_down();
}

TEST(CallbacksTest, CallbacksOfARingRunOneAtATime) {
  constexpr int kCount = 20;
  const Folder folder;
  const auto handle = Make();
  Bytes bytes = RandomBytes(300, 2);
  StandingWrite standing(*handle, folder / "file", bytes);
  std::vector<int> order;  // without a lock; ends on several threads need not call in the order of their operations
  std::optional<int> first;
  std::vector<std::shared_ptr<Operation>> operations;
  std::latch called(kCount);
  for (int i = 0; i < kCount; ++i) {  // each waits for the previous one
    operations.push_back(handle->StartWrite(folder / "file", View(bytes)).value());
    operations.back()->OnDone([&, i] {
      const bool holds = !first;
      if (holds) first = i;
      const auto is_done = [](const auto& operation) { return operation->done(); };
      while (holds && !std::ranges::all_of(operations, is_done)) std::this_thread::yield();
      std::vector<pid_t> others = ThreadsNamed("weightfs-io");
      std::erase(others, gettid());
      if (holds) WaitUntilBlocked(others);
      order.push_back(i);
      called.count_down();
    });
  }
  standing.LetGo();
  called.wait();
  std::vector<int> expected(kCount);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order.front(), first);
  std::ranges::sort(order);
  EXPECT_EQ(order, expected);
}

TEST(CallbacksTest, AnOperationIsFinishedAfterItsLastReport) {
  const Folder folder;
  for (const unsigned rings : {1U, 3U}) {
    Bytes bytes = RandomBytes(300'000);
    std::latch reached(1), go(1);
    std::atomic<uint64_t> reported = 0;
    const auto handle = Make(rings);
    const auto operation = handle
                               ->StartWrite(folder / std::to_string(rings), View(bytes),
                                            {.atomic = true,
                                             .progress =
                                                 [&](uint64_t done, uint64_t) {
                                                   if (done == bytes.size()) reached.count_down();
                                                   if (done == bytes.size()) go.wait();
                                                   reported = done;
                                                 }})
                               .value();
    operation->OnDone([&] { EXPECT_EQ(reported, bytes.size()); });
    reached.wait();
    WaitUntilIdle();
    EXPECT_FALSE(operation->done());
    EXPECT_EQ(ReadFile(folder / std::to_string(rings)).size(), 0U) << "the rename comes after it";
    go.count_down();
    EXPECT_TRUE(operation->Wait());
    EXPECT_EQ(reported, bytes.size());
  }
}

// Each callback begins another operation, while the handle is destroyed by another thread.
TEST(CallbacksTest, ACallbackThatBeginsAnOperationMayRunWhileItsHandleEnds) {
  const Folder folder;
  Bytes bytes = RandomBytes(5000, 2);
  for (int round = 0; round < 30; ++round) {
    auto owned = Make(3);
    Handle* const handle = owned.get();
    std::atomic<int> ended = 0;
    std::latch begun(1);
    std::function<void()> next;
    next = [&] {
      const int number = ended++;
      if (number == 3) begun.count_down();
      const auto name = folder / std::to_string(number % 3);
      auto operation = handle->StartWrite(name, View(bytes), {.atomic = true});
      if (operation.has_value()) return (*operation)->OnDone(next);
      EXPECT_EQ(operation.error().code, ErrorCode::kCancelled) << operation.error().what;
    };
    StandingWrite standing(*handle, folder / "standing", bytes);
    standing->OnDone(next);
    standing.LetGo();
    begun.wait();
    owned.reset();
  }
}

TEST(CallbacksTest, AHandleEndsInACallbackWhileOthersAreDue) {
  const Folder folder;
  Bytes bytes = RandomBytes(5000, 2);
  for (int round = 0; round < 20; ++round) {
    auto handle = Make();
    StandingWrite standing(*handle, folder / "file", bytes);
    std::vector<std::shared_ptr<Operation>> behind;
    std::latch called(5);
    for (int i = 0; i < 5; ++i) {
      behind.push_back(handle->StartWrite(folder / (i < 3 ? "file" : "other"), View(bytes)).value());
      behind.back()->OnDone([&] { called.count_down(); });
    }
    standing->OnDone([&] { handle.reset(); });
    standing.LetGo();
    called.wait();
    for (const auto& operation : behind) EXPECT_TRUE(operation->done());
    while (!ThreadsNamed("weightfs-io").empty()) std::this_thread::yield();  // the one of the callback is the last
  }
}

}  // namespace
}  // namespace weightfs::client
