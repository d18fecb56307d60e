// SPDX-License-Identifier: Apache-2.0
#include "common/utc_time.h"

#include <gtest/gtest.h>

namespace weightfs {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(UtcTimeTest, FormatsFullSeconds) {
  EXPECT_EQ(FormatUtc(0), "1970-01-01T00:00:00Z");
  EXPECT_EQ(FormatUtc(1'709'251'199 * kSecond + 999'999'999), "2024-02-29T23:59:59Z");
  EXPECT_EQ(FormatUtc(INT64_MAX), "2262-04-11T23:47:16Z");
}

TEST(UtcTimeTest, AVersionHasTheSameDigits) {
  EXPECT_EQ(UtcVersion(0), 19700101000000u);
  EXPECT_EQ(UtcVersion(1'709'251'199 * kSecond), 20240229235959u);
  EXPECT_EQ(UtcVersion(INT64_MAX), 22620411234716u);
}

}  // namespace
}  // namespace weightfs
