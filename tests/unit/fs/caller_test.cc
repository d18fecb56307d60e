// SPDX-License-Identifier: Apache-2.0
#include "fs/caller.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "common/log.h"
#include "common/processes.h"

namespace weightfs {
namespace {

constexpr uid_t kStranger = 65533;

// Runs `body` in a process of another user, which may not read this process's links in /proc.
bool IsTrueForAStranger(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0)
    _exit(setresgid(kStranger, kStranger, kStranger) == 0 && setresuid(kStranger, kStranger, kStranger) == 0 &&
                  access("/proc/1/ns/user", F_OK) != 0 && body()
              ? 0
              : 1);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status == 0;
}

TEST(CallerTest, CapabilitiesOfThisProcessAreSeen) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED LOUDLY: needs root, who has capabilities";
  EXPECT_TRUE(CredentialsOf(0, 0, getpid())->Can(CAP_DAC_OVERRIDE));
}

TEST(CallerTest, AnotherUserSeesTheCapabilitiesOfRoot) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED LOUDLY: needs root, who has capabilities";
  EXPECT_TRUE(IsTrueForAStranger([root = getpid()] { return CredentialsOf(0, 0, root)->Can(CAP_DAC_OVERRIDE); }));
}

TEST(CallerTest, RightsThatCannotBeReadAreNotTakenForNone) {
  ProcDirectory();
  // The undefined-behavior sanitizer needs descriptors for its first look at the types of a line like the expected one.
  spdlog::error("an expected error of thread {} follows: {}", getpid(), std::strerror(EMFILE));
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{0, 0};
    const bool limited = setrlimit(RLIMIT_NOFILE, &none) == 0;
    const auto caller = CredentialsOf(0, 0, getpid());
    _exit(limited && !caller.has_value() && caller.error().error_number() == EMFILE ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(CallerTest, CapabilitiesInAnotherUserNamespaceAreNone) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED LOUDLY: needs root to become another user";
  int ready[2], end[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(end), 0);
  const pid_t contained = fork();
  if (contained == 0) {
    const char made = unshare(CLONE_NEWUSER) == 0 ? 'y' : 'n';
    char none;
    close(end[1]);
    _exit(write(ready[1], &made, 1) == 1 && read(end[0], &none, 1) == 0 ? 0 : 1);
  }
  char made = 0;
  ASSERT_EQ(read(ready[0], &made, 1), 1);
  const auto has_none = [contained] { return CredentialsOf(0, 0, contained)->capabilities == 0; };
  if (made == 'y') {
    EXPECT_TRUE(has_none());
    EXPECT_TRUE(IsTrueForAStranger(has_none));
  }
  for (const int descriptor : {ready[0], ready[1], end[0], end[1]}) close(descriptor);
  ASSERT_EQ(waitpid(contained, nullptr, 0), contained);
  if (made != 'y') GTEST_SKIP() << "SKIPPED LOUDLY: this machine makes no user namespaces";
}

}  // namespace
}  // namespace weightfs
