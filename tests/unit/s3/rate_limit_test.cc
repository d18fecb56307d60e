// SPDX-License-Identifier: Apache-2.0
#include "s3/rate_limit.h"

#include <gtest/gtest.h>

namespace weightfs::s3 {
namespace {

using std::chrono::milliseconds;

TEST(RateLimit, ZeroIsUnlimited) {
  RateLimit limit(0);
  EXPECT_EQ(limit.Take(1 << 30, {}), size_t{1} << 30);
}

TEST(RateLimit, GrantsTheRateOverTime) {
  RateLimit limit(1'000'000);
  RateLimit::Time now = RateLimit::Time() + std::chrono::hours(1);
  size_t granted = 0;
  for (int i = 0; i < 10'000; ++i, now += milliseconds(1)) granted += limit.Take(1 << 20, now);
  EXPECT_NEAR(static_cast<double>(granted), 10e6, 0.2e6);
}

TEST(RateLimit, ALongPauseGivesNoLargeBurst) {
  RateLimit limit(1'000'000);
  const RateLimit::Time now = RateLimit::Time() + std::chrono::hours(1);
  limit.Take(1 << 20, now);
  EXPECT_LE(limit.Take(1 << 20, now + std::chrono::hours(1)), size_t{100'000});
}

TEST(RateLimit, SmallRatesAndSmallBodiesMakeProgress) {
  RateLimit limit(1'000);
  RateLimit::Time now = RateLimit::Time() + std::chrono::hours(1);
  limit.Take(1, now);
  now += std::chrono::seconds(20);
  EXPECT_EQ(limit.Take(100, now), 100U);
  EXPECT_EQ(limit.Take(1 << 20, now), 0U) << "less than a useful piece";
  now += std::chrono::seconds(1);
  EXPECT_GE(limit.Take(1 << 20, now), 16'000U);
}

}  // namespace
}  // namespace weightfs::s3
