// SPDX-License-Identifier: Apache-2.0
#include "fs/user_limit.h"

#include <gtest/gtest.h>

#include <vector>

namespace weightfs {
namespace {

TEST(UserLimit, LimitsEachUserAlone) {
  UserLimit limit(3);
  std::vector<UserLimit::Share> shares;
  for (int i = 0; i < 3; ++i) shares.push_back(*limit.Take(1));
  EXPECT_FALSE(limit.Take(1).has_value());
  EXPECT_TRUE(limit.Take(2).has_value());
  shares.pop_back();
  EXPECT_TRUE(limit.Take(1).has_value()) << "the share was given back at once";
  EXPECT_TRUE(limit.Take(1).has_value());
}

TEST(UserLimit, CountsAmounts) {
  UserLimit limit(100);
  const auto most = limit.Take(1, 99);
  ASSERT_TRUE(most.has_value());
  EXPECT_FALSE(limit.Take(1, 2).has_value());
  EXPECT_FALSE(limit.Take(1, UINT64_MAX).has_value());
  EXPECT_TRUE(limit.Take(1, 1).has_value());
  EXPECT_TRUE(limit.Take(1, 0).has_value());
  EXPECT_FALSE(limit.Take(2, 101).has_value());
}

// An empty extended attribute takes nothing, and its share may end after that of a later request.
TEST(UserLimit, AShareOfNothingOutlivesTheOthersOfItsUser) {
  UserLimit limit(4);
  auto nothing = limit.Take(1, 0);
  auto more_of_nothing = limit.Take(1, 0);
  auto something = limit.Take(1, 4);
  ASSERT_TRUE(nothing.has_value() && more_of_nothing.has_value() && something.has_value());
  something.reset();
  nothing.reset();
  more_of_nothing.reset();
  EXPECT_TRUE(limit.Take(1, 4).has_value());
}

TEST(UserLimit, AMovedShareIsGivenBackOnce) {
  UserLimit limit(1);
  {
    UserLimit::Share first = *limit.Take(1);
    UserLimit::Share second = std::move(first);
    EXPECT_FALSE(limit.Take(1).has_value());
    second = UserLimit::Share();
  }
  auto again = limit.Take(1);
  EXPECT_TRUE(again.has_value());
  EXPECT_FALSE(limit.Take(1).has_value());
}

}  // namespace
}  // namespace weightfs
