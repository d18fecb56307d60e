// SPDX-License-Identifier: Apache-2.0
#include "cli/keepers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weightfs::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(KeepersTest, WithoutVisibleUsersNoReasonIsGiven) {
  EXPECT_EQ(DescribeKeepers({}), "it has not ended yet");
  EXPECT_THAT(DescribeKeepers({.complete = false}), HasSubstr("processes of other users may use it"));
  EXPECT_EQ(KeepersTable({}), "");
}

TEST(KeepersTest, AProcessIsNamedForKillOnlyWhereItsNumberIsKnown) {
  EXPECT_THAT(KeepersAdvice({}, 4711), HasSubstr("'kill 4711'"));
  EXPECT_THAT(KeepersAdvice({}, 0), Not(HasSubstr("kill ")));
  const Error error = StillServed("/srv/s", {.held = true, .noted = 4711}, {});
  EXPECT_THAT(error.what, HasSubstr("still served by another process"));
  EXPECT_THAT(error.what, Not(HasSubstr("4711")));
}

}  // namespace
}  // namespace weightfs::cli
