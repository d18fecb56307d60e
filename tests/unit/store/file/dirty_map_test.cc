// SPDX-License-Identifier: Apache-2.0
#include "store/file/dirty_map.h"

#include <gtest/gtest.h>

namespace weightfs {
namespace {

class DirtyMapTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBufferBlocks = 16;

  DirtyBlocks InBuffer(const Buffer& buffer, uint64_t first) {
    DirtyBlocks blocks;
    blocks.buffer = buffer;
    blocks.buffer_first = {first};
    return blocks;
  }

  std::unique_ptr<BufferPool> pool_ =
      BufferPool::Create({.buffer_size = ByteCount{kBufferBlocks * kBlockSize}, .count = 4}).value();
  DirtyMap map_;
};

TEST_F(DirtyMapTest, NeighborsInOneBufferBecomeOneRange) {
  const Buffer buffer = pool_->Allocate();
  map_.Insert(FileBlock{0}, BlockCount{2}, InBuffer(buffer, 0));
  map_.Insert(FileBlock{4}, BlockCount{2}, InBuffer(buffer, 0));
  EXPECT_EQ(map_.ranges().size(), 2U);
  map_.Insert(FileBlock{2}, BlockCount{2}, InBuffer(buffer, 0));
  EXPECT_EQ(map_.ranges().size(), 1U);
  EXPECT_EQ(map_.dirty().value, 6U);
  EXPECT_TRUE(map_.IsDirty(FileBlock{0}, BlockCount{6}));
  EXPECT_FALSE(map_.IsDirty(FileBlock{0}, BlockCount{7}));
  EXPECT_EQ(map_.Writable(FileBlock{1}).data(), buffer.data() + kBlockSize);
  EXPECT_EQ(map_.Writable(FileBlock{1}).size(), 5 * kBlockSize);
}

TEST_F(DirtyMapTest, BlocksUnderWritebackAreNotWritable) {
  map_.Insert(FileBlock{0}, BlockCount{8}, InBuffer(pool_->Allocate(), 0));
  map_.StartWriteback(FileBlock{2}, BlockCount{3}, 7);
  EXPECT_EQ(map_.dirty().value, 5U);
  EXPECT_TRUE(map_.Writable(FileBlock{3}).empty());
  EXPECT_EQ(map_.Writable(FileBlock{0}).size(), 2 * kBlockSize);
  EXPECT_TRUE(map_.HasWriteback(FileBlock{0}, BlockCount{3}, UINT64_MAX));
  EXPECT_FALSE(map_.HasWriteback(FileBlock{5}, BlockCount{3}, UINT64_MAX));
  EXPECT_FALSE(map_.HasWriteback(FileBlock{0}, BlockCount{3}, 7)) << "it began later";
  EXPECT_TRUE(map_.Overlaps(FileBlock{3}, BlockCount{1}));
}

TEST_F(DirtyMapTest, TheEndOfAWriteKeepsBlocksOverwrittenMeanwhile) {
  map_.Insert(FileBlock{0}, BlockCount{4}, InBuffer(pool_->Allocate(), 0));
  map_.StartWriteback(FileBlock{0}, BlockCount{4}, 7);
  map_.Insert(FileBlock{1}, BlockCount{1}, InBuffer(pool_->Allocate(), 0));
  map_.RemoveWrite(FileBlock{0}, BlockCount{4}, 7);
  ASSERT_EQ(map_.ranges().size(), 1U);
  EXPECT_EQ(map_.ranges().begin()->first, 1U);
  EXPECT_EQ(map_.dirty().value, 1U);
}

TEST_F(DirtyMapTest, ABufferHasRoomForBlocksNextToItsDirtyOnes) {
  const Buffer buffer = pool_->Allocate();
  map_.Insert(FileBlock{18}, BlockCount{2}, InBuffer(buffer, 16));
  for (const uint64_t block : {16, 17, 20, 31}) {
    const DirtyBlocks* found = map_.BufferFor(FileBlock{block});
    ASSERT_NE(found, nullptr) << block;
    EXPECT_EQ(found->buffer.data(), buffer.data());
  }
  EXPECT_EQ(map_.BufferFor(FileBlock{15}), nullptr);
  EXPECT_EQ(map_.BufferFor(FileBlock{32}), nullptr);
  map_.StartWriteback(FileBlock{18}, BlockCount{2}, 1);
  EXPECT_EQ(map_.BufferFor(FileBlock{20}), nullptr) << "a device write reads the buffer";
}

TEST_F(DirtyMapTest, RemovalCountsDirtyBlocksAlone) {
  map_.Insert(FileBlock{0}, BlockCount{8}, InBuffer(pool_->Allocate(), 0));
  map_.StartWriteback(FileBlock{0}, BlockCount{4}, 1);
  map_.Remove(FileBlock{2}, BlockCount{4});
  EXPECT_EQ(map_.dirty().value, 2U);
  EXPECT_EQ(map_.Find(FileBlock{3}), nullptr);
  EXPECT_NE(map_.Find(FileBlock{1}), nullptr);
  EXPECT_NE(map_.Find(FileBlock{6}), nullptr);
}

TEST_F(DirtyMapTest, WritebackTwiceIsABug) {
  map_.Insert(FileBlock{0}, BlockCount{2}, InBuffer(pool_->Allocate(), 0));
  map_.StartWriteback(FileBlock{0}, BlockCount{1}, 1);
  EXPECT_DEATH(map_.StartWriteback(FileBlock{0}, BlockCount{2}, 2), "assertion failed");
}

}  // namespace
}  // namespace weightfs
