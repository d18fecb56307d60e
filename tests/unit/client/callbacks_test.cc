// SPDX-License-Identifier: Apache-2.0
// Callbacks run on threads of their own, and one that blocks holds up nothing else.
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "client/handle.h"
#include "tests/support/thread_state.h"
#include "tests/unit/client/files.h"
#include "tests/unit/client/operations.h"

namespace weightfs::client {
namespace {

std::unique_ptr<Handle> Make() { return Handle::Create({.block_size = 4096, .queue_depth = 4}).value(); }

// Expects that operations of each kind end, and that their callbacks are called.
void ExpectOthersEnd(Handle& handle, const Folder& folder) {
  Bytes bytes = RandomBytes(50'000, 1);
  Bytes target(bytes.size());
  const std::string path = folder / "other";
  EXPECT_TRUE(handle.Write(path, View(bytes)).has_value());
  EXPECT_TRUE(handle.Read(path, View(target), {.progress = [](uint64_t, uint64_t) {}}).has_value());
  EXPECT_EQ(target, bytes);
  std::atomic<uint64_t> reported = 0;
  const auto written =
      handle.StartWrite(path, View(bytes), {.progress = [&](uint64_t done, uint64_t) { reported = done; }}).value();
  std::latch called(1);
  written->OnDone([&] { called.count_down(); });
  EXPECT_TRUE(written->Wait());
  EXPECT_EQ(reported, bytes.size());
  called.wait();
  EXPECT_TRUE(handle.StartRead(path, View(target)).value()->Wait());
}

TEST(CallbacksTest, AReportOfProgressThatBlocksDelaysNoOtherOperation) {
  const Folder folder;
  const auto handle = Make();
  Bytes bytes = RandomBytes(50'000, 2);
  StandingWrite standing(*handle, folder / "standing", bytes);
  ExpectOthersEnd(*handle, folder);
  EXPECT_FALSE(standing->done());
}

TEST(CallbacksTest, ACallbackOfAnEndThatBlocksDelaysNoOtherOperation) {
  const Folder folder;
  const auto handle = Make();
  Bytes bytes = RandomBytes(50'000, 2);
  std::latch go(1), stands(3);
  std::vector<std::unique_ptr<StandingWrite>> writes;  // not done when they are given their callbacks
  for (int i = 0; i < 3; ++i) {
    writes.push_back(std::make_unique<StandingWrite>(*handle, folder / std::to_string(i), bytes));
    (*writes.back())->OnDone([&] {
      stands.count_down();
      go.wait();
    });
  }
  for (const auto& write : writes) write->LetGo();
  stands.wait();
  ExpectOthersEnd(*handle, folder);
  go.count_down();
}

TEST(CallbacksTest, CallbacksRunOnThreadsOfTheirOwn) {
  const Folder folder;
  const auto handle = Make();
  Bytes bytes = RandomBytes(1 << 20);
  std::mutex mutex;
  std::set<std::string> names;
  const auto note = [&] {
    const std::lock_guard lock(mutex);
    names.insert(ReadThreadFile(gettid(), "comm"));
  };
  const Progress progress = [&](uint64_t, uint64_t) { note(); };
  EXPECT_TRUE(handle->Write(folder / "file", View(bytes), {.progress = progress}).has_value());
  EXPECT_TRUE(handle->Read(folder / "file", View(bytes), {.progress = progress}).has_value());
  std::latch called(1);
  StandingWrite write(*handle, folder / "file", bytes);
  write->OnDone([&] {
    note();
    called.count_down();
  });
  write.LetGo();
  called.wait();
  EXPECT_EQ(names, std::set<std::string>{"weightfs-call\n"});
}

TEST(CallbacksTest, AnOperationIsFinishedAfterItsLastReport) {
  const Folder folder;
  const auto handle = Make();
  Bytes bytes = RandomBytes(300);
  std::latch reached(1), go(1);
  std::atomic<bool> returned = false;
  const auto operation = handle
                             ->StartWrite(folder / "new", View(bytes),
                                          {.atomic = true,
                                           .progress =
                                               [&](uint64_t done, uint64_t) {
                                                 EXPECT_EQ(done, bytes.size());
                                                 reached.count_down();
                                                 go.wait();
                                                 returned = true;
                                               }})
                             .value();
  operation->OnDone([&] { EXPECT_TRUE(returned); });
  reached.wait();
  WaitUntilIdle();
  EXPECT_FALSE(operation->done());
  EXPECT_EQ(ReadFile(folder / "new").size(), 0U) << "the rename comes after it";
  go.count_down();
  EXPECT_TRUE(operation->Wait());
  EXPECT_TRUE(returned);
}

}  // namespace
}  // namespace weightfs::client
