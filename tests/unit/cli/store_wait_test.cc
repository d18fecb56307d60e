// SPDX-License-Identifier: Apache-2.0
#include "cli/keepers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "store/volume/store_directory.h"
#include "tests/support/holding_child.h"
#include "tests/support/temporary_directory.h"

namespace weightfs::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(WaitUntilReleasedTest, ReturnsAtOnceWhereNobodyHoldsTheStore) {
  const TemporaryDirectory scratch;
  EXPECT_TRUE(WaitUntilReleased(scratch.path().string()).has_value());
  EXPECT_TRUE(StoreLock::Acquire(scratch.path().string()).has_value());
}

// The holder is a child that exits once this process has begun to wait, or just before. The lock is free in both cases.
TEST(WaitUntilReleasedTest, WaitsForAHolderThatIsClosing) {
  const TemporaryDirectory scratch;
  HoldingChild child([&](const HoldingChild::Hold& hold) {
    auto lock = StoreLock::Acquire(scratch.path().string());
    lock->Claim();
    lock->NoteClosing();
    hold("locked");
  });
  ASSERT_FALSE(StoreLock::Acquire(scratch.path().string()).has_value());
  child.Release();
  EXPECT_TRUE(WaitUntilReleased(scratch.path().string()).has_value());
  EXPECT_TRUE(StoreLock::Acquire(scratch.path().string()).has_value());
}

TEST(WaitUntilReleasedTest, RefusesAStoreThatACommandWorksOn) {
  const TemporaryDirectory scratch;
  HoldingChild child([&](const HoldingChild::Hold& hold) {
    auto lock = StoreLock::Acquire(scratch.path().string());
    lock->Claim();
    hold("locked");
  });
  const auto refused = WaitUntilReleased(scratch.path().string());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
  EXPECT_THAT(refused.error().what, HasSubstr("process " + std::to_string(child.process()) + " (unit_cli)"));
  EXPECT_THAT(refused.error().what, Not(HasSubstr("unmount")));
}

// If the holder is in another PID namespace, its number in the lock file has no meaning here.
TEST(WaitUntilReleasedTest, NamesTheHolderAndNotTheNumberInTheFile) {
  const TemporaryDirectory scratch;
  HoldingChild child([&](const HoldingChild::Hold& hold) {
    const auto lock = StoreLock::Acquire(scratch.path().string());
    std::ofstream(scratch.path() / kLockName) << "4194304\n";
    hold("locked");
  });
  const auto refused = WaitUntilReleased(scratch.path().string());
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().what, HasSubstr("process " + std::to_string(child.process()) + " "));
  EXPECT_THAT(refused.error().what, Not(HasSubstr("4194304")));
}

}  // namespace
}  // namespace weightfs::cli
