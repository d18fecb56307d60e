// SPDX-License-Identifier: Apache-2.0
#include "common/nearest_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weightfs {
namespace {

TEST(EditDistanceTest, CountsEditsAndSwapsOfNeighbors) {
  EXPECT_EQ(EditDistance("", ""), 0U);
  EXPECT_EQ(EditDistance("", "abc"), 3U);
  EXPECT_EQ(EditDistance("abc", ""), 3U);
  EXPECT_EQ(EditDistance("umount", "umount"), 0U);
  EXPECT_EQ(EditDistance("unmount", "umount"), 1U);
  EXPECT_EQ(EditDistance("mount", "mouxt"), 1U);
  EXPECT_EQ(EditDistance("mount", "moutn"), 1U) << "a swap is one edit";
  EXPECT_EQ(EditDistance("ca", "abc"), 3U) << "no part is edited twice";
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3U);
}

TEST(NearestNameTest, ComesNearOrSaysNothing) {
  const std::vector<std::string> known = {"--size", "--sparse", "--device", "-o"};
  EXPECT_EQ(NearestName("--szie", known), "--size");
  EXPECT_EQ(NearestName("--spar", known), "--sparse") << "an abbreviation";
  EXPECT_EQ(NearestName("--dev", known), "--device");
  EXPECT_EQ(NearestName("--compression", known), "");
  EXPECT_EQ(NearestName("-x", known), "") << "every letter is near another";
}

TEST(NearestNameTest, TakesTheNearestOfSeveral) {
  const std::vector<std::string> known = {"relatime", "noatime", "norelatime"};
  EXPECT_EQ(NearestName("noatme", known), "noatime");
  EXPECT_EQ(NearestName("norelatme", known), "norelatime");
}

}  // namespace
}  // namespace weightfs
