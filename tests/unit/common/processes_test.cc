// SPDX-License-Identifier: Apache-2.0
#include "common/processes.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "common/unique_fd.h"
#include "tests/support/holding_child.h"
#include "tests/support/temporary_directory.h"

namespace weightfs {
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

TEST(ProcessesTest, ThisProcessIsListedWithItsCommandAndFiles) {
  EXPECT_THAT(AllProcesses(), testing::Contains(getpid()));
  EXPECT_EQ(CommandOf(getpid()), "unit_common");
  EXPECT_TRUE(ReadProcFile("self/mountinfo").has_value());
  EXPECT_THAT(ReadProcLink("self/exe"), testing::EndsWith("/unit_common"));
  EXPECT_THAT(ListProc("self/fd").value(), testing::Contains("2"));
}

TEST(ProcessesDeathTest, ProcIsOpenedAgainAfterAFailure) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not opened it
  const auto look = [] {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit none{0, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    const bool unseen = !ReadProcFile("self/stat").has_value() && errno == EMFILE;
    setrlimit(RLIMIT_NOFILE, &limit);
    _exit(unseen && ReadProcFile("self/stat").has_value() ? 0 : 1);
  };
  EXPECT_EXIT(look(), testing::ExitedWithCode(0), "");
}

TEST(ProcessesTest, AMissingProcessSetsErrno) {
  EXPECT_EQ(CommandOf(0), "");
  errno = 0;
  EXPECT_FALSE(ReadProcFile("0/stat").has_value());
  EXPECT_EQ(errno, ENOENT);
  errno = 0;
  EXPECT_FALSE(ListProc("0/fd").has_value());
  EXPECT_EQ(errno, ENOENT);
}

TEST(LockHolderTest, IsTheProcessThatHoldsTheLockDespiteOtherClaims) {
  const TemporaryDirectory scratch;
  const std::string path = scratch.path() / "lock";
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_EQ(FindLockHolder(file.get(), 0), 0);
  EXPECT_EQ(FindLockHolder(file.get(), 1), 0) << "process 1 does not have it open";
  HoldingChild child([&](const HoldingChild::Hold& hold) {
    const UniqueFd own(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (flock(own.get(), LOCK_EX | LOCK_NB) == 0) hold("locked");
  });
  ASSERT_EQ(child.text(), "locked");
  EXPECT_EQ(FindLockHolder(file.get(), getpid()), child.process());
  child.End();
  EXPECT_EQ(FindLockHolder(file.get(), getpid()), getpid()) << "no lock is listed, and this process has it open";
}

}  // namespace
}  // namespace weightfs
