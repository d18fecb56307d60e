// SPDX-License-Identifier: Apache-2.0
#include "hdf5/write_buffer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <span>
#include <vector>

#include "tests/support/seeds.h"
#include "tests/unit/client/files.h"

namespace weightfs::hdf5 {
namespace {

using client::Bytes;
using client::RandomBytes;

constexpr size_t kSegment = 64 << 10;

class WriteBufferTest : public testing::Test {
 protected:
  Bytes Content(uint64_t offset, size_t size) {
    Bytes bytes(size);
    EXPECT_EQ(writes_.Overlay(offset, bytes), size);
    return bytes;
  }

  MemoryPool pool_;
  WriteBuffer writes_{&pool_, kSegment};
};

TEST_F(WriteBufferTest, MergesContiguousWrites) {
  const Bytes bytes = RandomBytes(10'000);
  for (size_t at = 0; at < bytes.size(); at += 100) {
    ASSERT_TRUE(writes_.Put(7 + at, std::span(bytes).subspan(at, 100), true).has_value());
  }
  EXPECT_EQ(writes_.segments().size(), 1U);
  EXPECT_EQ(writes_.bytes(), bytes.size());
  EXPECT_EQ(writes_.end(), 7 + bytes.size());
  EXPECT_EQ(Content(7, bytes.size()), bytes);
}

TEST_F(WriteBufferTest, KeepsMetadataAndDataInSeparateSegments) {
  const Bytes bytes = RandomBytes(200);
  ASSERT_TRUE(writes_.Put(0, std::span(bytes).first(100), true).has_value());
  ASSERT_TRUE(writes_.Put(100, std::span(bytes).last(100), false).has_value());
  EXPECT_EQ(writes_.segments().size(), 2U);
  EXPECT_EQ(Content(0, 200), bytes);
}

TEST_F(WriteBufferTest, FullSegmentEndsAtABlockBoundary) {
  const Bytes bytes = RandomBytes(3 * kSegment);
  ASSERT_TRUE(writes_.Put(1000, bytes, true).has_value());
  const auto& first = *writes_.segments().begin();
  EXPECT_TRUE(writes_.IsFull(first.first, first.second));
  EXPECT_EQ((first.first + first.second.size) % 4096, 0U);
  EXPECT_TRUE(writes_.TakeFilled());
  EXPECT_FALSE(writes_.TakeFilled());
  EXPECT_EQ(Content(1000, bytes.size()), bytes);
}

TEST_F(WriteBufferTest, MatchesAMapOfBytes) {
  const uint64_t seed = FirstSeed();
  SCOPED_TRACE(testing::Message() << "WEIGHTFS_SEED=" << seed);
  std::mt19937_64 random(seed);
  constexpr uint64_t kSpace = 300'000;
  std::map<uint64_t, std::byte> model;
  for (int step = 0; step < 1000; ++step) {
    const uint64_t begin = random() % kSpace;
    const size_t size = 1 + random() % (random() % 8 == 0 ? 150'000 : 500);
    if (random() % 4 == 0) {
      ASSERT_TRUE(writes_.Discard(begin, begin + size).has_value());
      model.erase(model.lower_bound(begin), model.lower_bound(begin + size));
    } else {
      const Bytes bytes = RandomBytes(size, static_cast<unsigned>(random()));
      ASSERT_TRUE(writes_.Put(begin, bytes, random() % 2 == 0).has_value());
      for (size_t i = 0; i < size; ++i) model[begin + i] = bytes[i];
    }
    ASSERT_EQ(writes_.bytes(), model.size()) << "step " << step;
    if (step % 100 != 0) continue;
    Bytes seen(2 * kSpace, std::byte{0xEE});
    ASSERT_EQ(writes_.Overlay(0, seen), model.size());
    for (const auto& [at, byte] : model) ASSERT_EQ(seen[at], byte) << "step " << step << " offset " << at;
  }
  uint64_t end = 0;
  for (const auto& [begin, segment] : writes_.segments()) {
    ASSERT_GE(begin, end) << "segments overlap";
    end = begin + segment.size;
  }
}

}  // namespace
}  // namespace weightfs::hdf5
