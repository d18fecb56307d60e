// SPDX-License-Identifier: Apache-2.0
#include "s3/text.h"

#include <gtest/gtest.h>

namespace weightfs::s3 {
namespace {

using Clock = std::chrono::system_clock;

TEST(HttpTime, BothNotationsAreTheSameTime) {
  ASSERT_TRUE(ParseIsoTime("2026-11-23T18:47:26Z"));
  EXPECT_EQ(Clock::to_time_t(*ParseIsoTime("2026-11-23T18:47:26Z")), 1795459646);
  EXPECT_EQ(ParseIsoTime("2026-11-23T18:47:26.5Z"), ParseHttpTime("Mon, 23 Nov 2026 18:47:26 GMT"));
  EXPECT_FALSE(ParseIsoTime("tomorrow"));
  EXPECT_FALSE(ParseHttpTime("tomorrow"));
}

TEST(HttpTime, TimesThatTheClockCannotHaveAreLimited) {
  const auto now = Clock::now();
  EXPECT_GT(ParseIsoTime("9999-12-31T23:59:59Z"), now);
  EXPECT_GT(ParseHttpTime("Fri, 31 Dec 9999 23:59:59 GMT"), now);
  ASSERT_TRUE(ParseIsoTime("0001-01-01T00:00:00Z"));
  EXPECT_EQ(Clock::to_time_t(*ParseIsoTime("0001-01-01T00:00:00Z")), 0);
  EXPECT_GT(*ParseIsoTime("9999-12-31T23:59:59Z") - *ParseIsoTime("0001-01-01T00:00:00Z"), std::chrono::hours(0));
}

}  // namespace
}  // namespace weightfs::s3
