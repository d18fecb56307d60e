// SPDX-License-Identifier: Apache-2.0
// System calls that may block (the ends of operations, and transfers through the page cache) run on no thread that has
// others to do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <functional>
#include <latch>
#include <mutex>
#include <set>
#include <thread>

#include "client/handle.h"
#include "common/file_owner.h"
#include "tests/support/thread_state.h"
#include "tests/unit/client/files.h"
#include "tests/unit/client/operations.h"

namespace {

std::mutex hook_mutex;
std::function<void(const std::string& call)> hook;  // called before each of the calls below

void Note(const char* call) {
  std::function<void(const std::string&)> current;
  {
    const std::lock_guard lock(hook_mutex);
    current = hook;
  }
  if (current) current(call);
}

}  // namespace

extern "C" int fsync(int descriptor) {
  Note("fsync");
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}
extern "C" int ftruncate(int descriptor, off_t size) noexcept {
  Note("ftruncate");
  return static_cast<int>(syscall(SYS_ftruncate, descriptor, size));
}
extern "C" ssize_t pread(int descriptor, void* data, size_t size, off_t offset) {
  Note("pread");
  return syscall(SYS_pread64, descriptor, data, size, offset);
}
extern "C" int open(const char* path, int flags, ...) {
  va_list mode;
  va_start(mode, flags);
  Note("open");
  const long opened = syscall(SYS_openat, AT_FDCWD, path, flags, va_arg(mode, mode_t));
  va_end(mode);
  return static_cast<int>(opened);
}
extern "C" int rename(const char* from, const char* to) noexcept {
  Note("rename");
  return static_cast<int>(syscall(SYS_rename, from, to));
}

namespace weightfs::client {
namespace {

class EndsTest : public ::testing::Test {
 protected:
  static void SetHook(std::function<void(const std::string&)> function) {
    const std::lock_guard lock(hook_mutex);
    hook = std::move(function);
  }
  ~EndsTest() override { SetHook(nullptr); }

  // A write of which this call and fsync are part.
  std::shared_ptr<Operation> StartWrite(const std::string& call) {
    const bool shrinks = call == "ftruncate";
    if (shrinks) WriteFile(folder_ / "slow", Bytes(100'000));
    return handle_->StartWrite(folder_ / "slow", View(bytes_), {.durable = true, .atomic = !shrinks}).value();
  }

  const Folder folder_;
  Bytes bytes_ = RandomBytes(50'000, 1);
  const std::unique_ptr<Handle> handle_ = Handle::Create({.block_size = 4096, .queue_depth = 4}).value();
};

TEST_F(EndsTest, AnEndThatBlocksDelaysNoOtherOperation) {
  for (const std::string slow : {"fsync", "ftruncate", "rename"}) {
    SCOPED_TRACE(slow);
    std::latch reached(1), go(1);
    SetHook([&](const std::string& call) {
      if (call != slow) return;
      SetHook(nullptr);
      reached.count_down();
      go.wait();
    });
    const auto operation = StartWrite(slow);
    reached.wait();
    Bytes target(bytes_.size());
    for (int i = 0; i < 10; ++i) {
      const std::string path = folder_ / std::to_string(i);
      EXPECT_TRUE(handle_->StartWrite(path, View(bytes_), {.durable = true, .atomic = true}).value()->Wait());
      EXPECT_TRUE(handle_->StartRead(path, View(target)).value()->Wait());
      EXPECT_EQ(target, bytes_);
    }
    EXPECT_FALSE(operation->done());
    go.count_down();
    EXPECT_TRUE(operation->Wait());
    EXPECT_FALSE(operation->error());
    EXPECT_EQ(ReadFile(folder_ / "slow"), bytes_);
  }
}

// One transfer, which needs no ring, and several of a ring.
TEST_F(EndsTest, AReadThroughThePageCacheThatBlocksDelaysNoOtherOperation) {
  WriteFile(folder_ / "slow", RandomBytes(60'300, 3));
  for (const size_t size : {300, 60'300}) {
    SCOPED_TRACE(size);
    std::latch reached(1), go(1);
    SetHook([&](const std::string& call) {
      if (call != "pread") return;
      SetHook(nullptr);
      reached.count_down();
      go.wait();
    });
    Bytes target(size);
    const auto operation = handle_->StartRead(folder_ / "slow", View(target)).value();
    reached.wait();
    for (int i = 0; i < 10; ++i) {
      const std::string path = folder_ / std::to_string(i);
      EXPECT_TRUE(handle_->StartWrite(path, View(bytes_)).value()->Wait());
      EXPECT_TRUE(handle_->Read(path, View(bytes_)).has_value());
    }
    EXPECT_FALSE(operation->done());
    go.count_down();
    EXPECT_TRUE(operation->Wait());
    EXPECT_FALSE(operation->error());
  }
}

TEST_F(EndsTest, NoRingMakesACallThatMayBlock) {
  std::mutex mutex;
  std::set<std::string> names;
  SetHook([&](const std::string&) {
    const std::lock_guard lock(mutex);
    names.insert(ReadThreadFile(gettid(), "comm"));
  });
  Bytes large = RandomBytes(3'000'001, 1);
  for (const uint64_t offset : {0, 1}) {
    handle_->StartWrite(folder_ / "file", View(large), {.offset = offset, .durable = true}).value()->Wait();
    handle_->StartRead(folder_ / "file", View(large), {.offset = offset}).value()->Wait();
  }
  for (const std::string call : {"ftruncate", "rename"}) StartWrite(call)->Wait();
  SetHook(nullptr);
  EXPECT_TRUE(names.contains("weightfs-work\n"));
  EXPECT_FALSE(names.contains("weightfs-io\n"));
}

// A thread with a user of its own creates the handle, so that its threads have that user.
TEST_F(EndsTest, AnEndHasTheUserOfTheThreadThatBeganTheOperation) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  const FileIdentity nobody{65'534, 65'534};
  std::unique_ptr<Handle> handle;
  std::thread([&] {
    nobody.Adopt();
    handle = Handle::Create({}).value();
  }).join();
  Bytes large = RandomBytes(3 << 20, 1);
  const auto behind = [&] {  // its open is at its turn, on a thread of the handle
    const auto before = handle->StartWrite(folder_ / "file", View(large), {.durable = true}).value();
    const auto operation = handle->StartWrite(folder_ / "file", View(bytes_), {.atomic = true}).value();
    before->Wait();
    return operation;
  };
  chmod((folder_ / ".").c_str(), 0700);
  const auto first = handle->StartWrite(folder_ / "other", View(bytes_), {.atomic = true}).value();
  for (const auto& operation : {first, behind()}) {
    EXPECT_TRUE(operation->Wait());
    EXPECT_FALSE(operation->error()) << operation->error()->what;
  }
}

}  // namespace
}  // namespace weightfs::client
