// SPDX-License-Identifier: Apache-2.0
#include "common/size_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weightfs {
namespace {

TEST(ParseSizeTest, AcceptsCommonSpellings) {
  const std::pair<const char*, uint64_t> cases[] = {{"0", 0},
                                                    {"4096", 4096},
                                                    {"512B", 512},
                                                    {"1K", kKiB},
                                                    {"1k", kKiB},
                                                    {"64M", 64 * kMiB},
                                                    {"64MiB", 64 * kMiB},
                                                    {"64MB", 64 * kMiB},
                                                    {"8G", 8 * kGiB},
                                                    {"8gib", 8 * kGiB},
                                                    {"1.5T", 3 * kTiB / 2},
                                                    {"0.5K", 512},
                                                    {"2P", 2048 * kTiB},
                                                    {"8000P", 8000 * 1024 * kTiB}};
  for (const auto& [text, bytes] : cases) {
    const auto parsed = ParseSize(text);
    ASSERT_TRUE(parsed.has_value()) << text;
    EXPECT_EQ(parsed->value, bytes) << text;
  }
}

TEST(ParseSizeTest, RefusesEverythingElseNamingTheText) {
  for (const char* text : {"", "G", "-1", "-1G", "8X", "8GG", "8 G", " 8G", "8G ", "8iB", "1e3", "nan", "inf", "0x10",
                           "8192P", "99999999999999999999", "1..5G", "8GiBB"}) {
    const auto parsed = ParseSize(text);
    ASSERT_FALSE(parsed.has_value()) << text << " gave " << parsed->value;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalid);
    EXPECT_THAT(parsed.error().what, testing::HasSubstr("'" + std::string(text) + "'"));
  }
}

TEST(FormatSizeTest, TakesTheLargestUnitBelowTheSize) {
  EXPECT_EQ(FormatSize({0}), "0 B");
  EXPECT_EQ(FormatSize({1023}), "1023 B");
  EXPECT_EQ(FormatSize({kKiB}), "1.00 KiB");
  EXPECT_EQ(FormatSize({64 * kMiB}), "64.0 MiB");
  EXPECT_EQ(FormatSize({8 * kGiB}), "8.00 GiB");
}

}  // namespace
}  // namespace weightfs
