// SPDX-License-Identifier: Apache-2.0
#include "s3/rate_limit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace weightfs::s3 {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Time = RateLimit::Clock::time_point;

constexpr size_t kLarge = 1 << 30;
constexpr Time kStart = Time() + std::chrono::hours(1);

TEST(RateLimit, ZeroIsUnlimited) {
  const auto turn = RateLimit(0).Reserve(kLarge, kStart);
  EXPECT_EQ(turn.bytes, kLarge);
  EXPECT_EQ(turn.time, kStart);
}

TEST(RateLimit, GrantsTheRateOverTime) {
  RateLimit limit(1'000'000);
  size_t sent = 0;
  for (auto turn = limit.Reserve(kLarge, kStart); turn.time < kStart + seconds(10);
       turn = limit.Reserve(kLarge, turn.time)) {
    sent += turn.bytes;
  }
  EXPECT_NEAR(static_cast<double>(sent), 10e6, 0.2e6);
}

TEST(RateLimit, ALongPauseGivesNoLargeBurst) {
  RateLimit limit(1'000'000);
  limit.Reserve(kLarge, kStart);
  const auto now = kStart + std::chrono::hours(1);
  size_t sent = 0;
  for (auto turn = limit.Reserve(kLarge, now); turn.time <= now; turn = limit.Reserve(kLarge, now)) sent += turn.bytes;
  EXPECT_LE(sent, size_t{100'000});
}

TEST(RateLimit, SmallRatesAndSmallBodiesMakeProgress) {
  RateLimit limit(10);
  EXPECT_EQ(limit.Reserve(1, kStart).bytes, 1U);
  EXPECT_EQ(limit.Reserve(kLarge, kStart).bytes, 1U);
  EXPECT_EQ(limit.Reserve(kLarge, kStart).time, kStart + milliseconds(200)) << "after the burst";
  EXPECT_EQ(RateLimit(1'000'000).Reserve(90, kStart).bytes, 90U) << "a body that is shorter than a piece";
}

TEST(RateLimit, AllSendersShareTheRate) {
  for (const uint64_t rate : {2'000, 1'000'000, 100'000'000}) {
    RateLimit limit(rate);
    while (limit.Reserve(kLarge, kStart).time <= kStart) continue;  // the burst
    std::array<Time, 16> free;  // of each sender
    free.fill(kStart);
    std::array<size_t, 16> sent{};
    for (auto next = free.begin(); *next < kStart + seconds(10); next = std::ranges::min_element(free)) {
      const auto turn = limit.Reserve(kLarge, *next);
      *next = turn.time;
      sent[static_cast<size_t>(next - free.begin())] += turn.bytes;
    }
    const auto [least, most] = std::ranges::minmax(sent);
    EXPECT_GT(static_cast<double>(least), 0.9 * static_cast<double>(rate) * 10 / 16) << rate;
    EXPECT_LT(static_cast<double>(most), 1.1 * static_cast<double>(rate) * 10 / 16) << rate;
  }
}

}  // namespace
}  // namespace weightfs::s3
