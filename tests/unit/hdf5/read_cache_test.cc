// SPDX-License-Identifier: Apache-2.0
#include "hdf5/read_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/unit/client/files.h"

namespace weightfs::hdf5 {
namespace {

constexpr size_t kExtent = 16 << 10;

class ReadCacheTest : public testing::Test {
 protected:
  void Add(uint64_t begin, std::byte fill) {
    ReadCache::Extent extent{.buffer = pool_.Take(kExtent), .size = kExtent};
    std::memset(extent.buffer.data(), static_cast<int>(fill), kExtent);
    cache_.Add(begin, std::move(extent));
  }

  MemoryPool pool_;
  ReadCache cache_{&pool_, 8 * kExtent};
};

TEST_F(ReadCacheTest, FindsTheExtentThatContainsAByte) {
  Add(kExtent, std::byte{1});
  EXPECT_EQ(cache_.Find(kExtent - 1), cache_.end());
  EXPECT_NE(cache_.Find(kExtent), cache_.end());
  EXPECT_NE(cache_.Find(2 * kExtent - 1), cache_.end());
  EXPECT_EQ(cache_.Find(2 * kExtent), cache_.end());
  EXPECT_EQ(cache_.FirstFrom(0)->first, kExtent);
  EXPECT_EQ(cache_.EndBefore(kExtent - 1), 0U);
  EXPECT_EQ(cache_.EndBefore(5 * kExtent), 2 * kExtent);
}

TEST_F(ReadCacheTest, EvictsTheLeastRecentlyUsed) {
  for (uint64_t i = 0; i < 8; ++i) Add(i * kExtent, std::byte{1});
  cache_.Touch(cache_.Find(0));
  Add(8 * kExtent, std::byte{1});
  EXPECT_LE(cache_.bytes(), 8 * kExtent);
  EXPECT_NE(cache_.Find(0), cache_.end()) << "most recently used";
  EXPECT_EQ(cache_.Find(kExtent), cache_.end()) << "least recently used";
  EXPECT_NE(cache_.Find(8 * kExtent), cache_.end()) << "new";
}

TEST_F(ReadCacheTest, PatchUpdatesLoadedExtents) {
  Add(0, std::byte{1});
  Add(kExtent, std::byte{1});
  const client::Bytes written(100, std::byte{2});
  cache_.Patch(kExtent - 50, written);
  const auto* first = cache_.Find(0)->second.buffer.data();
  const auto* second = cache_.Find(kExtent)->second.buffer.data();
  EXPECT_EQ(first[kExtent - 51], std::byte{1});
  EXPECT_EQ(first[kExtent - 50], std::byte{2});
  EXPECT_EQ(second[49], std::byte{2});
  EXPECT_EQ(second[50], std::byte{1});
}

TEST_F(ReadCacheTest, DropRemovesAllExtentsOfTheRange) {
  for (uint64_t i = 0; i < 4; ++i) Add(i * kExtent, std::byte{1});
  cache_.Drop(kExtent + 5, 2 * kExtent + 1);
  EXPECT_NE(cache_.Find(0), cache_.end());
  EXPECT_EQ(cache_.Find(kExtent), cache_.end());
  EXPECT_EQ(cache_.Find(2 * kExtent), cache_.end());
  EXPECT_NE(cache_.Find(3 * kExtent), cache_.end());
}

}  // namespace
}  // namespace weightfs::hdf5
