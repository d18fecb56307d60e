// SPDX-License-Identifier: Apache-2.0
#include "hdf5/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace weightfs::hdf5 {
namespace {

using testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  const auto parsed = ParseSettings(text);
  if (parsed.has_value()) return "accepted";
  EXPECT_EQ(parsed.error().error_number(), EINVAL);
  return parsed.error().what;
}

TEST(Settings, EmptyTextGivesTheDefaults) {
  for (const char* text : {"", "  ", ",;\n"}) {
    const auto parsed = ParseSettings(text);
    ASSERT_TRUE(parsed.has_value()) << text;
    EXPECT_TRUE(*parsed == Settings()) << text;
  }
}

TEST(Settings, ParsesEveryName) {
  const auto parsed = ParseSettings(
      "num_threads=4 block_size=2M,queue_depth=64;direct_size=8M cache=1G read_ahead=0 sync=close direct=require");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().what;
  EXPECT_EQ(parsed->num_threads, 4U);
  EXPECT_EQ(parsed->block_size, 2U << 20);
  EXPECT_EQ(parsed->queue_depth, 64U);
  EXPECT_EQ(parsed->direct_size, 8U << 20);
  EXPECT_EQ(parsed->cache, 1U << 30);
  EXPECT_EQ(parsed->read_ahead, 0U);
  EXPECT_EQ(parsed->sync, Sync::kClose);
  EXPECT_EQ(parsed->direct, client::Direct::kRequire);
}

TEST(Settings, ErrorNamesTheInvalidWord) {
  EXPECT_THAT(ErrorOf("num_threads=4 thread=2"), HasSubstr("'thread=2'"));
  EXPECT_THAT(ErrorOf("thread=2"), HasSubstr("names are num_threads, block_size"));
  EXPECT_THAT(ErrorOf("num_threads"), HasSubstr("expected NAME=VALUE"));
  EXPECT_THAT(ErrorOf("num_threads=many"), HasSubstr("whole number"));
  EXPECT_THAT(ErrorOf("num_threads=-1"), HasSubstr("whole number"));
  EXPECT_THAT(ErrorOf("num_threads=0"), HasSubstr("1 to 1024"));
  EXPECT_THAT(ErrorOf("queue_depth=65537"), HasSubstr("1 to 65536"));
  EXPECT_THAT(ErrorOf("block_size=1X"), HasSubstr("number of bytes"));
  EXPECT_THAT(ErrorOf("block_size=0"), HasSubstr("4096 to"));
  EXPECT_THAT(ErrorOf("cache=4096"), HasSubstr("cache=4096"));
  EXPECT_THAT(ErrorOf("sync=sometimes"), HasSubstr("never, flush, close"));
  EXPECT_THAT(ErrorOf("direct=yes"), HasSubstr("auto, never, require"));
}

}  // namespace
}  // namespace weightfs::hdf5
