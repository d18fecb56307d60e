// SPDX-License-Identifier: Apache-2.0
#include "common/interval_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace weightfs {
namespace {

struct Moving {
  uint64_t start;
  void Advance(uint64_t distance) { start += distance; }
};

using Ranges = std::vector<std::tuple<uint64_t, uint64_t, int>>;

Ranges ToList(const IntervalMap<int>& map) {
  Ranges list;
  for (const auto& [begin, range] : map) list.emplace_back(begin, range.end, range.value);
  return list;
}

TEST(IntervalMap, FindsTheRangeThatHoldsAPosition) {
  IntervalMap<int> map;
  map.Insert(10, 20, 1);
  map.Insert(20, 25, 2);
  EXPECT_EQ(map.Find(9), map.end());
  EXPECT_EQ(map.Find(10)->second.value, 1);
  EXPECT_EQ(map.Find(19)->second.value, 1);
  EXPECT_EQ(map.Find(20)->second.value, 2);
  EXPECT_EQ(map.Find(25), map.end());
  EXPECT_EQ(map.FirstFrom(0)->first, 10U);
  EXPECT_EQ(map.FirstFrom(15)->first, 10U);
  EXPECT_EQ(map.FirstFrom(25), map.end());
  EXPECT_TRUE(map.Overlaps(0, 11));
  EXPECT_FALSE(map.Overlaps(0, 10));
  EXPECT_FALSE(map.Overlaps(25, 30));
}

TEST(IntervalMap, ASplitAdvancesTheValueOfTheSecondPart) {
  IntervalMap<Moving> map;
  map.Insert(10, 20, {100});
  EXPECT_EQ(map.SplitAt(10), std::nullopt);
  EXPECT_EQ(map.SplitAt(20), std::nullopt);
  EXPECT_EQ(map.SplitAt(13), std::optional<uint64_t>(10));
  EXPECT_EQ(map.Find(12)->second.end, 13U);
  EXPECT_EQ(map.Find(13)->second.value.start, 103U);
  EXPECT_EQ(map.Find(13)->second.end, 20U);
}

TEST(IntervalMap, MergesNeighborsThatTouchAndAgree) {
  const auto equal = [](int left, int right) { return left == right; };
  IntervalMap<int> map;
  map.Insert(0, 5, 1);
  map.Insert(10, 15, 1);
  map.MergeAround(map.Insert(5, 10, 1), equal);
  EXPECT_EQ(ToList(map), (Ranges{{0, 15, 1}}));
  map.MergeAround(map.Insert(15, 20, 2), equal);
  map.MergeAround(map.Insert(21, 25, 2), equal);
  EXPECT_EQ(ToList(map), (Ranges{{0, 15, 1}, {15, 20, 2}, {21, 25, 2}}));
}

TEST(IntervalMapDeathTest, RefusesARangeThatOverlaps) {
  IntervalMap<int> map;
  map.Insert(10, 20, 1);
  EXPECT_DEATH(map.Insert(19, 21, 2), "assertion failed");
  EXPECT_DEATH(map.Insert(5, 11, 2), "assertion failed");
  EXPECT_DEATH(map.Insert(30, 30, 2), "assertion failed");
}

// Compared with an array that has one value for each position.
TEST(IntervalMap, RandomSplitsAndErasuresAgreeWithAModel) {
  constexpr uint64_t kEnd = 64;
  std::mt19937_64 random(7);
  IntervalMap<int> map;
  std::map<uint64_t, int> model;
  for (int step = 0; step < 2000; ++step) {
    const uint64_t begin = random() % kEnd, end = begin + 1 + random() % (kEnd - begin);
    map.SplitAt(begin);
    map.SplitAt(end);
    for (auto at = map.LowerBound(begin); at != map.end() && at->first < end;) at = map.Erase(at);
    for (uint64_t position = begin; position < end; ++position) model.erase(position);
    if (random() % 3 != 0) {
      map.MergeAround(map.Insert(begin, end, step % 3), [](int left, int right) { return left == right; });
      for (uint64_t position = begin; position < end; ++position) model[position] = step % 3;
    }
    for (uint64_t position = 0; position < kEnd; ++position) {
      const auto found = map.Find(position);
      ASSERT_EQ(found != map.end(), model.contains(position)) << "step " << step << ", position " << position;
      if (found != map.end()) {
        ASSERT_EQ(found->second.value, model[position]);
      }
    }
  }
}

}  // namespace
}  // namespace weightfs
