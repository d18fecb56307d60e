// SPDX-License-Identifier: Apache-2.0
#include "s3/rate_limit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>

namespace weightfs::s3 {
namespace {

using std::chrono::milliseconds;

constexpr size_t kLarge = 1 << 30;

class RateLimitTest : public testing::Test {
 protected:
  // The bytes that `sender`, which waits for `wanted`, is granted at the current time.
  static size_t Take(RateLimit& limit, RateLimit::Sender& sender, size_t wanted, RateLimit::Time now) {
    sender.granted = 0;
    limit.Leave(&sender);
    limit.Wait(&sender, wanted);
    limit.Distribute(now);
    return sender.granted;
  }
  RateLimit::Time now_ = RateLimit::Time() + std::chrono::hours(1);
};

TEST_F(RateLimitTest, ZeroIsUnlimited) {
  EXPECT_TRUE(RateLimit(0).unlimited());
  EXPECT_FALSE(RateLimit(1).unlimited());
}

TEST_F(RateLimitTest, GrantsTheRateOverTime) {
  RateLimit limit(1'000'000);
  RateLimit::Sender sender;
  size_t granted = 0;
  for (int i = 0; i < 10'000; ++i, now_ += milliseconds(1)) granted += Take(limit, sender, kLarge, now_);
  EXPECT_NEAR(static_cast<double>(granted), 10e6, 0.2e6);
}

TEST_F(RateLimitTest, ALongPauseGivesNoLargeBurst) {
  RateLimit limit(1'000'000);
  RateLimit::Sender sender;
  Take(limit, sender, kLarge, now_);
  EXPECT_LE(Take(limit, sender, kLarge, now_ + std::chrono::hours(1)), size_t{100'000});
}

TEST_F(RateLimitTest, SmallRatesAndSmallBodiesMakeProgress) {
  RateLimit limit(1'000);
  RateLimit::Sender sender;
  Take(limit, sender, 1, now_);
  now_ += std::chrono::seconds(20);
  EXPECT_EQ(Take(limit, sender, 90, now_), 90U);
  EXPECT_EQ(Take(limit, sender, kLarge, now_), 10U);
  EXPECT_EQ(Take(limit, sender, kLarge, now_), 0U) << "less than a useful piece";
  EXPECT_EQ(Take(limit, sender, kLarge, now_ + milliseconds(10)), 10U);
}

TEST_F(RateLimitTest, AllSendersShareTheRate) {
  for (const uint64_t rate : {2'000, 1'000'000, 100'000'000}) {
    RateLimit limit(rate);
    std::array<RateLimit::Sender, 16> senders;
    std::array<size_t, 16> sent{};
    for (auto& sender : senders) limit.Wait(&sender, kLarge);
    for (int i = 0; i < 1'000; ++i, now_ += milliseconds(10)) {
      limit.Distribute(now_);
      for (size_t at = 0; at < senders.size(); ++at) {
        if (senders[at].granted == 0) continue;
        sent[at] += std::exchange(senders[at].granted, 0);
        limit.Wait(&senders[at], kLarge);
      }
    }
    const auto [least, most] = std::ranges::minmax(sent);
    EXPECT_GT(static_cast<double>(least), 0.9 * static_cast<double>(rate) * 10 / 16) << rate;
    EXPECT_LT(static_cast<double>(most), 1.1 * static_cast<double>(rate) * 10 / 16) << rate;
  }
}

TEST_F(RateLimitTest, TheSenderThatHasWaitedLongestIsServedFirst) {
  RateLimit limit(1'000'000);
  limit.Distribute(now_);
  RateLimit::Sender first, second, third;
  limit.Wait(&first, kLarge);
  limit.Wait(&second, kLarge);
  limit.Wait(&third, kLarge);
  limit.Leave(&first);
  limit.Distribute(now_ + milliseconds(12));
  EXPECT_EQ(first.granted, 0U) << "it has left";
  EXPECT_GT(second.granted, 0U);
  EXPECT_EQ(third.granted, 0U);
  EXPECT_TRUE(limit.has_waiting());
}

}  // namespace
}  // namespace weightfs::s3
