// SPDX-License-Identifier: Apache-2.0
#include "store/file/read_cache.h"

#include <gtest/gtest.h>

namespace weightfs {
namespace {

constexpr InodeId kFile{1}, kOther{2};
using Purpose = ReadCache::Purpose;

class ReadCacheTest : public ::testing::Test {
 protected:
  // Adds a loaded chunk. Returns null if no buffer is available.
  ChunkPtr Add(InodeId ino, uint64_t index, Purpose purpose = Purpose::kNeeded) {
    Buffer buffer = cache_.TakeBuffer(purpose);
    if (!buffer) return nullptr;
    ChunkPtr chunk = cache_.Begin(ino, index, std::move(buffer));
    chunk->Finish({}, {});
    return chunk;
  }

  std::unique_ptr<BufferPool> pool_ =
      BufferPool::Create({.buffer_size = ByteCount{kChunkBytes}, .count = 2, .name = "chunks"}).value();
  ReadCache cache_{*pool_, nullptr};
};

TEST_F(ReadCacheTest, EvictsFullyReadChunksFirst) {
  Add(kFile, 0);
  Add(kFile, 1);
  cache_.NoteRead(kFile, 1);
  Add(kFile, 2);
  EXPECT_NE(cache_.Find(kFile, 0), nullptr);
  EXPECT_EQ(cache_.Find(kFile, 1), nullptr);
}

TEST_F(ReadCacheTest, ReadAheadLeavesUnreadChunksAlone) {
  Add(kFile, 0, Purpose::kAhead);
  Add(kFile, 1, Purpose::kAhead);
  EXPECT_EQ(Add(kOther, 0, Purpose::kAhead), nullptr);
  EXPECT_NE(Add(kOther, 0, Purpose::kNeeded), nullptr);
  EXPECT_EQ(cache_.Find(kFile, 0), nullptr);
}

TEST_F(ReadCacheTest, AChunkInUseOrLoadingIsNotEvicted) {
  const ChunkPtr held = Add(kFile, 0);
  ChunkPtr loading = cache_.Begin(kFile, 1, cache_.TakeBuffer(Purpose::kNeeded));
  ReadChunk* const raw = loading.get();
  loading.reset();
  EXPECT_FALSE(cache_.TakeBuffer(Purpose::kNeeded));
  raw->Finish({}, {});
  EXPECT_TRUE(cache_.TakeBuffer(Purpose::kNeeded));
  EXPECT_EQ(cache_.Find(kFile, 1), nullptr);
  EXPECT_EQ(cache_.Find(kFile, 0), held);
}

TEST_F(ReadCacheTest, InvalidationDropsTheChunksOfTheRange) {
  Add(kFile, 0);
  Add(kFile, 1);
  cache_.Invalidate(kFile, kChunkBytes, kChunkBytes + 1);
  EXPECT_NE(cache_.Find(kFile, 0), nullptr);
  EXPECT_EQ(cache_.Find(kFile, 1), nullptr);
  cache_.Invalidate(kOther, 0, UINT64_MAX);
  EXPECT_NE(cache_.Find(kFile, 0), nullptr);
  cache_.Invalidate(kFile, 0, UINT64_MAX);
  EXPECT_EQ(cache_.Find(kFile, 0), nullptr);
}

TEST_F(ReadCacheTest, WaitersAreCalledAtTheEndAndBadPartsFailTheCheck) {
  const ChunkPtr chunk = cache_.Begin(kFile, 0, cache_.TakeBuffer(Purpose::kNeeded));
  int called = 0;
  chunk->WhenReady([&] { ++called; });
  EXPECT_EQ(called, 0);
  const std::span<const std::byte> bytes = chunk->buffer().bytes();
  chunk->Finish(ErrorCode::kCorrupt, {bytes.subspan(kBlockSize, kBlockSize)});
  EXPECT_EQ(called, 1);
  chunk->WhenReady([&] { ++called; });
  EXPECT_EQ(called, 2);
  EXPECT_TRUE(chunk->Check(bytes.first(kBlockSize)));
  EXPECT_EQ(chunk->Check(bytes.first(kBlockSize + 1)).error().code, ErrorCode::kCorrupt);
}

TEST_F(ReadCacheTest, OnlyTheChunkThatFailedIsDropped) {
  const ChunkPtr old = Add(kFile, 0);
  cache_.Invalidate(kFile, 0, 1);
  const ChunkPtr current = Add(kFile, 0);
  cache_.Drop(kFile, 0, old.get());
  EXPECT_EQ(cache_.Find(kFile, 0), current);
  cache_.Drop(kFile, 0, current.get());
  EXPECT_EQ(cache_.Find(kFile, 0), nullptr);
}

}  // namespace
}  // namespace weightfs
