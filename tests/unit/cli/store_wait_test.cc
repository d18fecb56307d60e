// SPDX-License-Identifier: Apache-2.0
#include "cli/store_wait.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "store/volume/store_directory.h"
#include "tests/support/temporary_directory.h"

namespace weightfs::cli {
namespace {

TEST(IsEndingTest, AZombieAndAMissingProcessAre) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(IsEnding(child));
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(IsEnding(child));
}

TEST(IsEndingTest, ARunningProcessIsNot) { EXPECT_FALSE(IsEnding(getpid())); }

TEST(WaitUntilReleasedTest, ReturnsAtOnceWhereNobodyHoldsTheStore) {
  const TemporaryDirectory scratch;
  EXPECT_TRUE(WaitUntilReleased(scratch.path()).has_value());
  EXPECT_TRUE(StoreLock::Acquire(scratch.path()).has_value());
}

// The holder is a child that ends once this process has begun to wait, or just before: either way the lock is free
// then.
TEST(WaitUntilReleasedTest, WaitsForAHolderWhoseMountIsGone) {
  const TemporaryDirectory scratch;
  int ready[2], go[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(go[1]);
    auto lock = StoreLock::Acquire(scratch.path());
    if (!lock.has_value()) _exit(1);
    lock->Claim();
    char byte = 0;
    if (write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 0) _exit(1);
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_FALSE(StoreLock::Acquire(scratch.path()).has_value());
  close(go[0]);
  close(go[1]);
  EXPECT_TRUE(WaitUntilReleased(scratch.path()).has_value());
  EXPECT_TRUE(StoreLock::Acquire(scratch.path()).has_value());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace weightfs::cli
