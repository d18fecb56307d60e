// SPDX-License-Identifier: Apache-2.0
// Requests that may take long (opens, the ends of operations) run on no thread that drives a ring.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <cstdarg>
#include <filesystem>
#include <functional>
#include <future>
#include <latch>
#include <mutex>
#include <set>
#include <thread>

#include "client/handle.h"
#include "client/random_reader.h"
#include "client/ring.h"
#include "common/unique_fd.h"
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

class EndsTest : public testing::Test {
 protected:
  static void SetHook(std::function<void(const std::string&)> function) {
    const std::lock_guard lock(hook_mutex);
    hook = std::move(function);
  }
  ~EndsTest() override { SetHook(nullptr); }

  // Blocks the next such call until `go`.
  void Block(const std::string& slow, std::latch& reached, std::latch& go) {
    SetHook([&, slow](const std::string& call) {
      if (call != slow) return;
      SetHook(nullptr);
      reached.count_down();
      go.wait();
    });
  }
  // Expects that operations of each kind end.
  void ExpectOthersEnd() {
    Bytes target(bytes_.size());
    for (int i = 0; i < 10; ++i) {
      const std::string path = folder_ / std::to_string(i);
      EXPECT_TRUE(handle_->StartWrite(path, View(bytes_), {.durable = true, .atomic = true}).value()->Wait());
      EXPECT_TRUE(handle_->StartRead(path, View(target)).value()->Wait());
      EXPECT_TRUE(handle_->Read(path, View(target)).has_value());
      EXPECT_EQ(target, bytes_);
    }
  }
  // A write of which this call is part.
  std::shared_ptr<Operation> StartWrite(const std::string& call) {
    const bool shrinks = call == "ftruncate";
    if (shrinks) WriteFile(folder_ / "slow", Bytes(100'000));
    return handle_->StartWrite(folder_ / "slow", View(bytes_), {.durable = true, .atomic = !shrinks}).value();
  }
  // Writes whose ends block in fsync until `go` on as many threads as may have tasks, and three that wait for these.
  std::vector<std::shared_ptr<Operation>> BlockEnds(std::latch& reached, std::latch& go) {
    SetHook([&](const std::string& call) {
      if (call != "fsync") return;
      if (!reached.try_wait()) reached.count_down();
      go.wait();
    });
    std::vector<std::shared_ptr<Operation>> blocked;
    for (size_t i = 0; i < Ring::kMostTasks + 3; ++i) {
      blocked.push_back(handle_->StartWrite(folder_ / std::to_string(i), View(bytes_), {.durable = true}).value());
    }
    reached.wait();
    WaitUntilIdle();
    return blocked;
  }
  const Folder folder_;
  Bytes bytes_ = RandomBytes(50'000, 1);
  const std::unique_ptr<Handle> handle_ = Handle::Create({.block_size = 4096, .queue_depth = 4}).value();
};

TEST_F(EndsTest, AnEndThatBlocksDelaysNoOtherOperation) {
  for (const std::string slow : {"fsync", "ftruncate", "rename"}) {
    SCOPED_TRACE(slow);
    std::latch reached(1), go(1);
    Block(slow, reached, go);
    const auto operation = StartWrite(slow);
    reached.wait();
    ExpectOthersEnd();
    EXPECT_FALSE(operation->done());
    go.count_down();
    EXPECT_TRUE(operation->Wait());
    EXPECT_FALSE(operation->error());
    EXPECT_EQ(ReadFile(folder_ / "slow"), bytes_);
  }
}

TEST_F(EndsTest, AnOpenAtATurnThatBlocksDelaysNoOtherOperation) {
  Bytes target(bytes_.size());
  StandingWrite standing(*handle_, folder_ / "slow", bytes_);
  std::vector<std::shared_ptr<Operation>> operations;
  for (int i = 0; i < 3; ++i) operations.push_back(handle_->StartRead(folder_ / "slow", View(target)).value());
  std::latch reached(3), go(1);
  SetHook([&](const std::string& call) {
    if (call != "open" || reached.try_wait()) return;
    reached.count_down();
    go.wait();
  });
  standing.LetGo();
  reached.wait();
  ExpectOthersEnd();
  for (const auto& operation : operations) EXPECT_FALSE(operation->done());
  go.count_down();
  for (const auto& operation : operations) EXPECT_TRUE(operation->Wait());
  EXPECT_EQ(target, bytes_);
}

// One thread runs a callback and the others have ends that block. The last one does the transfers of all others.
TEST_F(EndsTest, ARingTransfersWhileAllItsOtherThreadsAreBlocked) {
  WriteFile(folder_ / "other", bytes_);
  StandingWrite standing(*handle_, folder_ / "standing", bytes_);
  std::latch reached(Ring::kMostTasks), go(1);
  const auto blocked = BlockEnds(reached, go);
  EXPECT_EQ(ThreadsNamed("weightfs-io").size(), Ring::kMostThreads);
  for (const auto& operation : blocked) EXPECT_EQ(operation->transferred(), operation->size());
  Bytes target(bytes_.size());
  EXPECT_TRUE(handle_->StartRead(folder_ / "other", View(target)).value()->Wait());
  EXPECT_EQ(target, bytes_);
  EXPECT_FALSE(blocked.front()->done());
  go.count_down();
  for (const auto& operation : blocked) EXPECT_TRUE(operation->Wait());
}

TEST_F(EndsTest, ACallbackRunsWhileEndsBlockAndMoreWait) {
  WriteFile(folder_ / "other", bytes_);
  std::latch reached(Ring::kMostTasks), go(1);
  const auto blocked = BlockEnds(reached, go);
  Bytes target(bytes_.size());
  std::promise<void> all;
  const Progress progress = [&](uint64_t done, uint64_t total) {
    if (done == total) all.set_value();
  };
  const auto read = handle_->StartRead(folder_ / "other", View(target), {.progress = progress}).value();
  EXPECT_EQ(all.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  go.count_down();
  EXPECT_TRUE(read->Wait());
  for (const auto& operation : blocked) EXPECT_TRUE(operation->Wait());
}

TEST_F(EndsTest, TransfersThroughThePageCacheRunOnAllRings) {
  constexpr unsigned kRings = 4;
  const auto handle = Handle::Create({.intra_op_parallelism = kRings}).value();
  Bytes large = RandomBytes(4 << 20, 1);
  WriteFile(folder_ / "file", large);
  const UniqueFd file(open((folder_ / "file").c_str(), O_RDONLY | O_CLOEXEC));
  std::barrier together(kRings);
  std::mutex mutex;
  std::set<pid_t> threads;
  SetHook([&](const std::string& call) {
    if (call != "pread") return;
    {
      const std::lock_guard lock(mutex);
      if (!threads.insert(gettid()).second) return;
    }
    together.arrive_and_wait();  // hangs if a thread is missing
  });
  Bytes target(large.size());
  EXPECT_TRUE(handle->StartRead(file.get(), View(target)).value()->Wait());
  EXPECT_EQ(threads.size(), kRings);
  EXPECT_EQ(target, large);
}

// A row needs no other thread.
TEST_F(EndsTest, AWaitingThreadReadsPartsOfBlocksItself) {
  Bytes content = RandomBytes(1 << 20, 1);
  WriteFile(folder_ / "rows", content);
  const auto reader = RandomReader::Open(folder_ / "rows", {.direct = Direct::kNever}).value();
  WaitUntilIdle();  // A thread that has just been started looks for work before it waits.
  std::set<pid_t> threads;
  std::mutex mutex;
  SetHook([&](const std::string&) {
    const std::lock_guard lock(mutex);
    threads.insert(gettid());
  });
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < 100; ++i) offsets.push_back(i * 7919);
  Bytes rows(100 * 300);
  EXPECT_TRUE(reader->ReadRows(offsets, 300, View(rows)).has_value());
  Bytes large(200'001);
  EXPECT_TRUE(handle_->Read(folder_ / "rows", View(large), {.offset = 1}).has_value());
  SetHook(nullptr);
  EXPECT_EQ(threads, std::set<pid_t>{gettid()});
  for (size_t i = 0; i < offsets.size(); ++i) {
    EXPECT_TRUE(std::equal(rows.begin() + i * 300, rows.begin() + (i + 1) * 300, content.begin() + offsets[i]));
  }
}

TEST_F(EndsTest, AllThreadsOfAHandleActAsTheOneThatCreatedIt) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  const auto identities = [] {
    std::multiset<std::string> found;
    for (const pid_t thread : ThreadsNamed("weightfs-io")) {
      const std::string status = ReadThreadFile(thread, "status");
      std::string facts;
      for (const std::string name : {"\nUid:", "\nGid:", "\nGroups:", "\nCapEff:"}) {
        const size_t begin = status.find(name);
        facts += status.substr(begin, status.find('\n', begin + 1) - begin);
      }
      found.insert(facts);
    }
    return found;
  };
  const std::multiset<std::string> before = identities();
  std::unique_ptr<Handle> handle;
  std::thread([&] {
    const gid_t group = 1234;
    syscall(SYS_setgroups, 1, &group);  // only of this thread, as the next two
    setfsgid(65'534);
    setfsuid(65'534);
    handle = Handle::Create({.block_size = 4096}).value();
  }).join();
  // More threads are started for operations of this thread.
  std::latch go(1), reached(3);
  std::vector<std::shared_ptr<Operation>> operations;
  SetHook([&](const std::string& call) {
    if (call != "fsync") return;
    reached.count_down();
    go.wait();
  });
  const size_t at_first = ThreadsNamed("weightfs-io").size();
  for (int i = 0; i < 3; ++i) {
    const std::string path = folder_ / std::to_string(i);
    WriteFile(path, {});  // a new name would be synced with its directory, which these threads may not open
    std::filesystem::permissions(path, std::filesystem::perms::all);
    operations.push_back(handle->StartWrite(path, View(bytes_), {.durable = true}).value());
  }
  reached.wait();
  EXPECT_GT(ThreadsNamed("weightfs-io").size(), at_first);
  std::multiset<std::string> after = identities();
  for (const std::string& one : before) after.erase(after.find(one));
  EXPECT_EQ(std::set<std::string>(after.begin(), after.end()).size(), 1U);
  EXPECT_NE(after.begin()->find("1234"), std::string::npos) << *after.begin();
  EXPECT_NE(after.begin()->find("65534"), std::string::npos) << *after.begin();
  go.count_down();
  for (const auto& operation : operations) {
    EXPECT_TRUE(operation->Wait());
    EXPECT_FALSE(operation->error()) << operation->error()->what;
  }
}

// Of bytes that never go through a bounce buffer.
TEST_F(EndsTest, AStableWriteThroughThePageCacheStoresItsChecksums) {
  for (const size_t size : {300, 5000, 63'999, 200'001}) {
    SCOPED_TRACE(size);
    Bytes bytes = RandomBytes(size, 3);
    const auto written =
        handle_->StartWrite(folder_ / "file", View(bytes), {.checksum = true, .stable = true}).value();
    ASSERT_TRUE(written->Wait());
    if (written->error() && written->error()->error_number() == EOPNOTSUPP) GTEST_SKIP() << "no extended attributes";
    EXPECT_FALSE(written->error());
    Bytes target(size);
    const auto read = handle_->Read(folder_ / "file", View(target), {.verify = true});
    EXPECT_TRUE(read.has_value()) << read.error().what;
    EXPECT_EQ(target, bytes);
  }
}

}  // namespace
}  // namespace weightfs::client
