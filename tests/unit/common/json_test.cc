// SPDX-License-Identifier: Apache-2.0
#include "common/json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

namespace weightfs {
namespace {

std::string Repeat(const std::string& text, size_t times) {
  std::string repeated;
  for (size_t at = 0; at < times; ++at) repeated += text;
  return repeated;
}

std::string ReasonFor(const std::string& text, const JsonLimits& limits = {}) {
  const auto parsed = ParseJson(text, limits);
  if (parsed) return "";
  EXPECT_EQ(parsed.error().code, ErrorCode::kCorrupt);
  return parsed.error().what;
}

TEST(ParseJson, ReturnsWhatIsThere) {
  const auto parsed = ParseJson(R"({"a": [1, "two", {"three": null}]})");
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->at("a").at(1), "two");
}

// With quadratic time this takes minutes.
TEST(ParseJson, ManySiblingsTakeLinearTime) {
  std::string names = "{", objects = "[";
  for (int i = 0; i < 200'000; ++i) {
    names += fmt::format("\"model.layers.{}\":{{}},", i);
    objects += "{},";
  }
  names.back() = '}';
  objects.back() = ']';
  for (const std::string& text : {names, objects}) {
    const auto parsed = ParseJson(text, {.bytes = text.size(), .values = 200'001});
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(parsed->size(), 200'000U);
  }
}

TEST(ParseJson, RefusesOtherText) {
  for (const char* text : {"", "{", "[1,]", "nothing", "{}{}", "\"\xff\"", "[1e999999]"}) {
    EXPECT_EQ(ReasonFor(text), "it is not JSON") << text;
  }
}

TEST(ParseJson, LimitsAreTheGreatestThatPass) {
  EXPECT_EQ(ReasonFor("[[[]]]", {.depth = 3}), "");
  EXPECT_EQ(ReasonFor("[[[]]]", {.depth = 2}), "its JSON has more than 2 levels");
  EXPECT_EQ(ReasonFor(R"({"a":{"b":[1]}})", {.depth = 3}), "");
  EXPECT_EQ(ReasonFor(R"({"a":{"b":[1]}})", {.depth = 2}), "its JSON has more than 2 levels");
  EXPECT_EQ(ReasonFor("[1,2,[]]", {.values = 4}), "");
  EXPECT_EQ(ReasonFor("[1,2,[]]", {.values = 3}), "its JSON has more than 3 values");
  EXPECT_EQ(ReasonFor("[1]", {.bytes = 3}), "");
  EXPECT_EQ(ReasonFor("[1]", {.bytes = 2}), "its JSON has more than 2 bytes");
}

// Brackets once took 80 times their bytes.
TEST(ParseJson, HostileTextTakesLittleMemory) {
  constexpr size_t kBytes = size_t{16} << 20;
  const std::string texts[] = {std::string(kBytes, '['), "[" + Repeat("[],", kBytes / 3), "[" + Repeat("0,", kBytes / 2),
                               "[" + Repeat("{\"\":0},", kBytes / 7), Repeat("{\"\":", kBytes / 4)};
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  for (const std::string& text : texts) EXPECT_NE(ReasonFor(text, {.bytes = kBytes}), "");
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10) << "KiB";
}

}  // namespace
}  // namespace weightfs
