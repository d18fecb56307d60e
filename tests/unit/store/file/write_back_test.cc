// SPDX-License-Identifier: Apache-2.0
#include "store/file/write_back.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "tests/support/file_rig.h"
#include "tests/support/test_store.h"
#include "tests/support/thread_state.h"

namespace weightfs {
namespace {

class WriteBackTest : public ::testing::Test {
 protected:
  uint64_t Dirty(const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    return inode->file->dirty().dirty().value;
  }

  FileRig rig_;
};

TEST_F(WriteBackTest, PressureTakesTheFileThatWasDirtyFirst) {
  const InodePtr first = rig_.NewFile(1), second = rig_.NewFile(2);
  rig_.Write(first, 0, Pattern(1, kBlockSize));
  rig_.Write(second, 0, Pattern(2, kBlockSize));
  rig_.Write(first, kBlockSize, Pattern(3, kBlockSize));
  EXPECT_TRUE(rig_.write_back().RelievePressure());
  EXPECT_EQ(Dirty(first), 0U);
  EXPECT_EQ(Dirty(second), 1U);
  EXPECT_TRUE(rig_.write_back().RelievePressure());
  EXPECT_FALSE(rig_.write_back().RelievePressure());
}

// Otherwise the queue would keep every inode that was ever written.
TEST_F(WriteBackTest, AFileWithoutDirtyBlocksIsNotInTheQueue) {
  const InodePtr inode = rig_.NewFile(1);
  rig_.Write(inode, 0, Pattern(1, kBlockSize));
  const auto is_queued = [&] {
    MutexLock lock(inode->mutex);
    return inode->file->queue_position != 0;
  };
  EXPECT_TRUE(is_queued());
  rig_.WriteBackAll(inode);
  EXPECT_FALSE(is_queued());
  EXPECT_FALSE(rig_.write_back().RelievePressure());
}

TEST_F(WriteBackTest, AFileThatTurnsDirtyAgainUnderPressureIsInTheQueueOnce) {
  const InodePtr inode = rig_.NewFile(1);
  rig_.Write(inode, 0, Pattern(1, kBlockSize));
  WriteSupplies supplies;
  ASSERT_TRUE(rig_.space().Reserve(&supplies.space, BlockCount{1}));
  supplies.small.push_back(rig_.small().Allocate());
  PendingWrites writes;
  std::thread pressure;
  {
    MutexLock lock(inode->mutex);
    std::promise<pid_t> started;
    pressure = std::thread([&] {
      started.set_value(gettid());
      rig_.write_back().RelievePressure();
    });
    WaitUntilAsleep(started.get_future().get());  // It is waiting for the file.
    rig_.write_back().StartAll(inode, &writes);
    WritePlan plan(supplies);
    inode->file->PlanCopy(kMiB, kBlockSize, nullptr, Staging::kSmall, &plan);
    inode->file->Apply(std::move(plan));
    rig_.write_back().UpdateQueue(inode);
  }
  pressure.join();
  rig_.write_back().Submit(&writes);
  EXPECT_EQ(Dirty(inode), 0U);
  EXPECT_FALSE(rig_.write_back().RelievePressure()) << "the file has an entry that nobody takes out";
}

TEST_F(WriteBackTest, SeveralFailedWritesOfAFileAreReportedOnce) {
  const InodePtr inode = rig_.NewFile(1);
  int failures = 0;
  rig_.write_back().OnFailed([&](const InodePtr& failed) {
    EXPECT_EQ(failed, inode);
    ++failures;
  });
  rig_.device().Fail(FaultDevice::Target::kWrite, {.nth = 1, .and_later = true});
  rig_.Write(inode, 0, Pattern(1, kBlockSize));
  rig_.Write(inode, 40 * kBlockSize, Pattern(2, kBlockSize));
  rig_.WriteBackAll(inode);
  EXPECT_EQ(failures, 1);
}

TEST_F(WriteBackTest, AcknowledgementsWaitForTheDevice) {
  const InodePtr inode = rig_.NewFile(1);
  rig_.Write(inode, 0, Pattern(1, kBlockSize));
  rig_.device().Hold();
  PendingWrites writes;
  {
    MutexLock lock(inode->mutex);
    rig_.write_back().StartAll(inode, &writes);
  }
  rig_.write_back().Submit(&writes);
  EXPECT_TRUE(writes.empty());
  rig_.device().WaitForHeld(1);
  std::atomic<bool> below{false};
  rig_.write_back().WhenBelow(ByteCount{kBlockSize}, [&] { below = true; });
  EXPECT_FALSE(below.load());
  bool at_once = false;
  rig_.write_back().WhenBelow(ByteCount{kBlockSize + 1}, [&] { at_once = true; });
  EXPECT_TRUE(at_once) << "fewer bytes than that are on their way";
  rig_.device().Release();
  MutexLock lock(inode->mutex);
  inode->file->WaitForAllWrites(lock);
  EXPECT_TRUE(below.load());
}

TEST_F(WriteBackTest, WritesThatAreNotSubmittedAreABug) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const InodePtr inode = rig_.NewFile(1);
  rig_.Write(inode, 0, Pattern(1, kBlockSize));
  EXPECT_DEATH(
      {
        PendingWrites writes;
        MutexLock lock(inode->mutex);
        rig_.write_back().StartAll(inode, &writes);
      },
      "assertion failed");
}

}  // namespace
}  // namespace weightfs
