// SPDX-License-Identifier: Apache-2.0
#include "store/file/extent_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace weightfs {
namespace {

DeviceRun Blocks(uint64_t start, uint64_t count, uint16_t device = 0) {
  return {DeviceId{device}, {DeviceBlock{start}, BlockCount{count}}};
}

class ExtentMapTest : public ::testing::Test {
 protected:
  // Applies the changes of one commit to the expected content of the catalog.
  void Commit() {
    for (const ExtentMap::Change& change : map_.TakeChanges()) {
      if (change.record) {
        catalog_[change.key.value] = *change.record;
      } else {
        catalog_.erase(catalog_.lower_bound(change.key.value), catalog_.lower_bound(change.end.value));
      }
    }
  }
  // The map as a new mount would load it.
  ExtentMap Reloaded() {
    ExtentMap loaded;
    for (const auto& [key, record] : catalog_) EXPECT_TRUE(loaded.Load(FileBlock{key}, record)) << key;
    return loaded;
  }

  ExtentMap map_;
  std::vector<DeviceRun> freed_;
  std::map<uint64_t, ExtentRecord> catalog_;
};

TEST_F(ExtentMapTest, LookupGivesPiecesAndHoles) {
  map_.Map(FileBlock{10}, Blocks(100, 5), 0, 1, &freed_);
  auto piece = map_.Lookup(FileBlock{0}, BlockCount{100});
  EXPECT_FALSE(piece.extent);
  EXPECT_EQ(piece.count.value, 10U);
  piece = map_.Lookup(FileBlock{12}, BlockCount{100});
  EXPECT_EQ(piece.extent->start.value, 102U);
  EXPECT_EQ(piece.count.value, 3U);
  piece = map_.Lookup(FileBlock{12}, BlockCount{2});
  EXPECT_EQ(piece.count.value, 2U);
  EXPECT_EQ(map_.Lookup(FileBlock{15}, BlockCount{7}).count.value, 7U);
}

TEST_F(ExtentMapTest, AnExtentGrowsWhereItsBlocksGoOn) {
  map_.Map(FileBlock{0}, Blocks(100, 4), 0, 1, &freed_);
  map_.Map(FileBlock{4}, Blocks(104, 4), 0, 1, &freed_);
  EXPECT_EQ(map_.size(), 1U);
  map_.Map(FileBlock{8}, Blocks(108, 4), 0, 2, &freed_);
  EXPECT_EQ(map_.size(), 2U) << "another generation is another record";
  map_.Map(FileBlock{12}, Blocks(112, 4, 1), 0, 2, &freed_);
  EXPECT_EQ(map_.size(), 3U) << "another device is another record";
}

TEST_F(ExtentMapTest, NoRecordIsLongerThanTheFormatAllows) {
  map_.Map(FileBlock{0}, Blocks(0, 2 * kMaximumExtentBlocks + 1), 0, 1, &freed_);
  EXPECT_EQ(map_.size(), 3U);
  map_.Map(FileBlock{2 * kMaximumExtentBlocks + 1}, Blocks(2 * kMaximumExtentBlocks + 1, kMaximumExtentBlocks), 0, 1,
           &freed_);
  for (const ExtentMap::Change& change : map_.TakeChanges()) {
    ASSERT_TRUE(change.record);
    EXPECT_LE(change.record->count.value, kMaximumExtentBlocks);
  }
}

TEST_F(ExtentMapTest, MappingOverBlocksFreesThem) {
  map_.Map(FileBlock{0}, Blocks(100, 10), 0, 1, &freed_);
  map_.Map(FileBlock{3}, Blocks(200, 4), 0, 2, &freed_);
  ASSERT_EQ(freed_.size(), 1U);
  EXPECT_EQ(freed_[0].run.start.value, 103U);
  EXPECT_EQ(freed_[0].run.count.value, 4U);
  EXPECT_EQ(map_.mapped().value, 10U);
}

TEST_F(ExtentMapTest, UnwrittenExtentsBecomeWrittenInPlace) {
  map_.Map(FileBlock{0}, Blocks(100, 10), kExtentUnwritten, 1, &freed_);
  EXPECT_FALSE(map_.Lookup(FileBlock{4}, BlockCount{1}).IsWritten());
  map_.MarkWritten(FileBlock{4}, BlockCount{2}, 2);
  EXPECT_TRUE(map_.Lookup(FileBlock{4}, BlockCount{2}).IsWritten());
  EXPECT_EQ(map_.Lookup(FileBlock{4}, BlockCount{2}).extent->start.value, 104U);
  EXPECT_FALSE(map_.Lookup(FileBlock{3}, BlockCount{1}).IsWritten());
  EXPECT_FALSE(map_.Lookup(FileBlock{6}, BlockCount{1}).IsWritten());
  EXPECT_TRUE(freed_.empty());
}

TEST_F(ExtentMapTest, OverlappingRecordsDoNotLoad) {
  ExtentRecord record;
  record.count = {10};
  EXPECT_TRUE(map_.Load(FileBlock{10}, record));
  EXPECT_FALSE(map_.Load(FileBlock{19}, record));
  EXPECT_FALSE(map_.Load(FileBlock{5}, record));
  EXPECT_TRUE(map_.Load(FileBlock{20}, record));
  EXPECT_EQ(map_.mapped().value, 20U);
}

TEST_F(ExtentMapTest, RandomCommitsReadBackAsTheMapping) {
  std::mt19937_64 random(11);
  uint64_t next = 0;
  for (int step = 0; step < 500; ++step) {
    const FileBlock first{random() % 200};
    const uint64_t count = 1 + random() % 30;
    switch (random() % 3) {
      case 0: map_.Unmap(first, BlockCount{count}, &freed_); break;
      default: map_.Map(first, Blocks(next, count), 0, 1 + step / 50, &freed_); next += count;
    }
    if (random() % 4 != 0) continue;
    Commit();
    const ExtentMap loaded = Reloaded();
    ASSERT_EQ(loaded.mapped(), map_.mapped());
    for (uint64_t block = 0; block < 240; ++block) {
      ASSERT_EQ(loaded.Lookup(FileBlock{block}, BlockCount{1}).extent,
                map_.Lookup(FileBlock{block}, BlockCount{1}).extent)
          << "step " << step << ", block " << block;
    }
  }
}

}  // namespace
}  // namespace weightfs
