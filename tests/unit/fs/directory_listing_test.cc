// SPDX-License-Identifier: Apache-2.0
#include "fs/directory_listing.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <set>

namespace weightfs {
namespace {

std::string Name(int number) { return std::to_string(100'000 + number); }

std::optional<std::string> Some(std::string text) { return text; }

class DirectoryListingTest : public ::testing::Test {
 protected:
  // Notes a reply with the names `from` to `to`, behind `position`, and returns the position behind each.
  std::vector<uint64_t> Reply(DirectoryListing& listing, uint64_t position, int from, int to) {
    std::vector<std::string> names;
    for (int i = from; i < to; ++i) names.push_back(Name(i));
    listing.Record(from == 0 ? "" : Name(from - 1), {names.begin(), names.end()});
    std::vector<uint64_t> positions;
    for (const std::string& name : names) positions.push_back(position = PositionBehind(position, name));
    return positions;
  }
  std::atomic<uint64_t> kept_{0};
  DirectoryListing listing_{kept_};
};

TEST_F(DirectoryListingTest, APositionIsOfItsNameAndCountsTheNames) {
  uint64_t position = kDots;
  std::set<uint64_t> positions;
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t before = position;
    position = PositionBehind(before, Name(i));
    ASSERT_TRUE(positions.insert(position).second);
    ASSERT_LE(position, uint64_t{std::numeric_limits<int64_t>::max()});
    ASSERT_GT(position, kDots);
    ASSERT_EQ(NamesBefore(position), static_cast<uint64_t>(i) + 1);
    ASSERT_TRUE(IsBehind(position, Name(i)) && !IsBehind(position, Name(i + 1)) && !IsBehind(before, Name(i)));
  }
}

TEST_F(DirectoryListingTest, APositionIsOfItsNameInEveryListing) {
  EXPECT_TRUE(IsBehind(PositionBehind(PositionBehind(kDots, "a"), "c"), "c"));
  EXPECT_TRUE(IsBehind(PositionBehind(kDots, "c"), "c"));
}

TEST_F(DirectoryListingTest, PositionsBehindMoreNamesThanAreCountedAreValid) {
  uint64_t position = std::numeric_limits<int64_t>::max();
  position = PositionBehind(position, "a");
  EXPECT_EQ(NamesBefore(PositionBehind(position, "b")), NamesBefore(position));
  EXPECT_TRUE(IsBehind(PositionBehind(position, "b"), "b"));
  EXPECT_LE(position, uint64_t{std::numeric_limits<int64_t>::max()});
}

TEST_F(DirectoryListingTest, FindsEveryNameOfTheLastReplyAndTheOneBefore) {
  const auto first = Reply(listing_, kDots, 0, 10);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(listing_.Find(first[i]), Some(Name(i)));
  const auto second = Reply(listing_, first.back(), 10, 20);
  EXPECT_EQ(listing_.Find(first[8]), std::nullopt);
  EXPECT_EQ(listing_.Find(first[9]), Some(Name(9)));
  for (int i = 10; i < 20; ++i) EXPECT_EQ(listing_.Find(second[i - 10]), Some(Name(i)));
}

TEST_F(DirectoryListingTest, TheEndKeepsNoNamesButTheLast) {
  const auto positions = Reply(listing_, kDots, 0, 10);
  EXPECT_EQ(kept_, 10 * 7U);
  listing_.Record(Name(9), {});
  EXPECT_EQ(kept_, 0U);
  EXPECT_EQ(listing_.Find(positions[9]), Some(Name(9)));
  EXPECT_EQ(listing_.Find(positions[8]), std::nullopt);
}

TEST_F(DirectoryListingTest, AllTogetherKeepABoundedNumberOfNames) {
  std::vector<std::string> names;
  for (int i = 0; i < 200; ++i) names.push_back(std::string(249, 'n') + Name(i));
  const std::vector<std::string_view> views(names.begin(), names.end());
  std::vector<std::unique_ptr<DirectoryListing>> listings;
  for (int i = 0; i < 1000; ++i) {
    listings.push_back(std::make_unique<DirectoryListing>(kept_));
    listings.back()->Record("", views);
    ASSERT_LE(kept_, kListingMemory);
  }
  EXPECT_GT(kept_, kListingMemory - kLargestListing);
  EXPECT_EQ(listings.front()->Find(PositionBehind(kDots, names[3])), names[3]);
  EXPECT_EQ(listings.back()->Find(PositionBehind(kDots, names[3])), std::nullopt) << "it is looked for";
  EXPECT_EQ(listings.back()->Find(PositionBehind(kDots, names[199])), names[199]) << "the last one is always known";
  listings.clear();
  EXPECT_EQ(kept_, 0U);
}

TEST(RemovedNamesTest, ANameIsFoundInItsDirectoryUntilAnotherReplacesIt) {
  RemovedNames removed;
  const uint64_t position = PositionBehind(kDots, "a");
  EXPECT_EQ(removed.Find(InodeId{5}, position), std::nullopt);
  removed.Add(InodeId{5}, "a");
  EXPECT_EQ(removed.Find(InodeId{5}, position), Some("a"));
  EXPECT_EQ(removed.Find(InodeId{6}, position), std::nullopt);
  EXPECT_EQ(removed.Find(InodeId{5}, PositionBehind(kDots, "b")), std::nullopt);
  for (int i = 0; i < 20 * static_cast<int>(kRemovedNames); ++i) removed.Add(InodeId{5}, Name(i));
  EXPECT_EQ(removed.Find(InodeId{5}, position), std::nullopt);
}

}  // namespace
}  // namespace weightfs
