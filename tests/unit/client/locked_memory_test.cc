// SPDX-License-Identifier: Apache-2.0
#include "client/locked_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/units.h"

namespace weightfs::client {
namespace {

TEST(LockedMemoryTest, LockedMemoryIsAlignedZeroedAndKnownToTheWholeProcess) {
  const auto memory = LockedMemory::Allocate(3 * kMiB + 5).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % (2 * kMiB), 0U);
  EXPECT_EQ(memory->size(), 3 * kMiB + 5);
  for (size_t i = 0; i < memory->size(); i += 997) ASSERT_EQ(memory->data()[i], std::byte{0});
  EXPECT_TRUE(IsLocked(memory->data(), memory->size()));
  EXPECT_TRUE(IsLocked(memory->data() + 100, 5));
  EXPECT_FALSE(IsLocked(memory->data() + 100, memory->size()));
  EXPECT_FALSE(IsLocked(memory->data() + memory->size(), 1));
  EXPECT_FALSE(IsLocked(memory->data() - 1, 1));
  int other = 0;
  EXPECT_FALSE(IsLocked(&other, sizeof(other)));
  EXPECT_EQ(FindLocked(memory->data()), memory);
  EXPECT_EQ(FindLocked(memory->data() + 1), nullptr);
}

TEST(LockedMemoryTest, UnlockedMemoryStaysUsableAndIsNoLongerLocked) {
  const auto memory = LockedMemory::Allocate(kMiB).value();
  EXPECT_TRUE(memory->Unlock());
  EXPECT_FALSE(IsLocked(memory->data(), 1));
  EXPECT_FALSE(memory->Unlock());
  std::memset(memory->data(), 1, memory->size());
}

TEST(LockedMemoryTest, TheListForgetsWhatIsFreed) {
  auto memory = LockedMemory::Allocate(kMiB).value();
  const std::byte* data = memory->data();
  memory.reset();
  EXPECT_FALSE(IsLocked(data, 1));
}

TEST(LockedMemoryTest, WithoutTheRightTheErrorNamesTheLimit) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizers turn mlock into nothing";
#endif
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Root is not subject to the limit, so the child becomes another user.
    const rlimit limit{65536, 65536};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)) _exit(2);
    const auto memory = LockedMemory::Allocate(kMiB);
    const bool right = !memory.has_value() && memory.error().error_number() == ENOMEM &&
                       memory.error().what.find("RLIMIT_MEMLOCK is 65536 bytes") != std::string::npos;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace weightfs::client
