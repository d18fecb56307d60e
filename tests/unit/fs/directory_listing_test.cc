// SPDX-License-Identifier: Apache-2.0
#include "fs/directory_listing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

namespace weightfs {
namespace {

using Cursor = DirectoryListing::Cursor;

// A directory that is listed in replies of `per_reply` entries.
class ListedDirectory {
 public:
  explicit ListedDirectory(std::atomic<uint64_t>& kept, size_t per_reply) : listing(kept), per_reply_(per_reply) {}

  // Answers a request at `position` and returns its names. Empty: the end.
  std::vector<std::string> Read(uint64_t position) {
    auto [after, skip] = listing.Find(position);
    auto at = after.empty() ? entries.begin() : entries.upper_bound(after);
    for (; skip > 0 && at != entries.end(); --skip, ++at) after = *at;
    std::vector<std::string> names;
    for (; names.size() < per_reply_ && at != entries.end(); ++at) names.push_back(*at);
    listing.Record(position, after, {names.begin(), names.end()});
    return names;
  }

  std::set<std::string> entries;
  DirectoryListing listing;

 private:
  const size_t per_reply_;
};

std::string Name(int number) { return std::to_string(100'000 + number); }

class DirectoryListingTest : public ::testing::Test {
 protected:
  void Fill(int count) {
    for (int i = 0; i < count; ++i) directory_.entries.insert(Name(i));
  }
  std::atomic<uint64_t> kept_{0};
  ListedDirectory directory_{kept_, 10};
};

TEST_F(DirectoryListingTest, TheDotsPrecedeTheFirstName) {
  Fill(20);
  for (const uint64_t position : {0, 1, 2}) EXPECT_EQ(directory_.listing.Find(position), Cursor());
  EXPECT_EQ(directory_.Read(2).front(), Name(0));
  for (const uint64_t position : {0, 1, 2}) EXPECT_EQ(directory_.listing.Find(position), Cursor());
}

TEST_F(DirectoryListingTest, GoesOnAtEveryEntryOfTheLastReplyWhateverWasDeleted) {
  Fill(100);
  for (uint64_t position = 2; position < 102;) {
    const auto names = directory_.Read(position);
    ASSERT_EQ(names.front(), Name(static_cast<int>(position) - 2));
    // The program's buffer holds three entries, and it deletes them.
    for (int i = 0; i < 3 && position < 102; ++i, ++position) {
      directory_.entries.erase(Name(static_cast<int>(position) - 2));
      directory_.entries.insert("0" + Name(static_cast<int>(position)));  // a new entry before it
    }
  }
  EXPECT_TRUE(directory_.Read(102).empty());
}

TEST_F(DirectoryListingTest, SeeksToEveryEarlierPosition) {
  Fill(5000);
  for (uint64_t position = 2; position < 5002; position += 10) directory_.Read(position);
  for (const uint64_t position : {5001, 4000, 2503, 2502, 99, 12, 3, 2, 4999}) {
    EXPECT_EQ(directory_.Read(position).front(), Name(static_cast<int>(position) - 2)) << position;
  }
}

TEST_F(DirectoryListingTest, CountsFromTheBeginWhereItNeverWas) {
  Fill(100);
  EXPECT_EQ(directory_.listing.Find(52), (Cursor{"", 50}));
  EXPECT_EQ(directory_.Read(52).front(), Name(50));
  EXPECT_EQ(directory_.Read(53).front(), Name(51));
}

TEST_F(DirectoryListingTest, KeepsTheNamesOfOneReplyAndAFewCheckpoints) {
  for (int i = 0; i < 200'000; ++i) {
    directory_.entries.insert(directory_.entries.end(), std::string(240, 'n') + Name(i));
  }
  size_t most = 0;
  for (uint64_t position = 2; position < 200'002; position += 10) {
    directory_.Read(position);
    most = std::max(most, directory_.listing.memory());
    ASSERT_EQ(kept_, 10 * (1 + 246));
  }
  EXPECT_LE(most, 10 * 247 + (kListingCheckpoints + 2) * 300);
  EXPECT_LE(directory_.listing.Find(150'000).skip, 200'000 / (kListingCheckpoints / 2));
  EXPECT_TRUE(directory_.Read(200'002).empty());
  EXPECT_EQ(kept_, 0U) << "a listing at its end keeps no names";
}

TEST_F(DirectoryListingTest, AllTogetherKeepABoundedNumberOfNames) {
  std::vector<std::string> names(200, std::string(255, 'n'));
  const std::vector<std::string_view> views(names.begin(), names.end());
  std::vector<std::unique_ptr<DirectoryListing>> listings;
  for (int i = 0; i < 1000; ++i) {
    listings.push_back(std::make_unique<DirectoryListing>(kept_));
    listings.back()->Record(2, "", views);
    ASSERT_LE(kept_, kListingMemory);
  }
  EXPECT_GT(kept_, kListingMemory - kLargestListing);
  EXPECT_EQ(listings.front()->Find(5), (Cursor{names[0]}));
  EXPECT_EQ(listings.back()->Find(5), (Cursor{"", 3})) << "it counts";
  EXPECT_EQ(listings.back()->Find(202), (Cursor{names[0]})) << "the end of the reply is always known";
  listings.clear();
  EXPECT_EQ(kept_, 0U);
}

}  // namespace
}  // namespace weightfs
