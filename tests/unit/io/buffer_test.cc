// SPDX-License-Identifier: Apache-2.0
#include "io/buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

#include "tests/support/thread_state.h"

namespace weightfs {
namespace {

std::unique_ptr<BufferPool> MakePool(BufferPool::Options options) {
  return std::move(BufferPool::Create(options).value());
}

TEST(BufferPoolTest, LargeBuffersBeginOnHugePagesAndDoNotOverlap) {
  const auto pool = MakePool({.buffer_size = {2 * kMiB}, .count = 4});
  std::vector<Buffer> buffers;
  std::set<std::byte*> addresses;
  for (int i = 0; i < 4; ++i) {
    buffers.push_back(pool->Allocate());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.back().data()) % (2 * kMiB), 0U);
    EXPECT_EQ(buffers.back().bytes().size(), 2 * kMiB);
    std::memset(buffers.back().data(), i, 2 * kMiB);
    addresses.insert(buffers.back().data());
  }
  EXPECT_EQ(addresses.size(), 4U);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(buffers[static_cast<size_t>(i)].bytes().front(), static_cast<std::byte>(i));
    EXPECT_EQ(buffers[static_cast<size_t>(i)].bytes().back(), static_cast<std::byte>(i));
  }
}

TEST(BufferPoolTest, TheHeaderEndsWhereThePageAlignedDataBegins) {
  const auto pool = MakePool({.buffer_size = {kMiB}, .count = 3, .headroom = {80}});
  const Buffer first = pool->Allocate();
  const Buffer second = pool->Allocate();
  for (const Buffer& buffer : {first, second}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kBlockSize, 0U);
    EXPECT_EQ(buffer.data() - buffer.header(), 80);
    std::memset(buffer.data(), 1, kMiB);
  }
  std::memset(second.header(), 2, 80);
  EXPECT_EQ(first.bytes().back(), std::byte{1}) << "a header lies in no other buffer";
}

TEST(BufferPoolTest, NeverAllocatesMoreThanItsCount) {
  const auto pool = MakePool({.buffer_size = {kBlockSize}, .count = 2});
  EXPECT_EQ(pool->capacity(), 2U);
  Buffer one = pool->TryAllocate();
  const Buffer two = pool->TryAllocate();
  EXPECT_TRUE(one);
  EXPECT_TRUE(two);
  EXPECT_FALSE(pool->TryAllocate());
  EXPECT_EQ(pool->in_use(), 2U);
  one = Buffer();
  EXPECT_EQ(pool->in_use(), 1U);
  EXPECT_TRUE(pool->TryAllocate());
}

TEST(BufferPoolTest, TheMostRecentlyUsedBufferIsAllocatedFirst) {
  const auto pool = MakePool({.buffer_size = {kBlockSize}, .count = 8});
  Buffer one = pool->Allocate();
  const Buffer two = pool->Allocate();
  std::byte* address = one.data();
  one = Buffer();
  EXPECT_EQ(pool->Allocate().data(), address);
}

TEST(BufferTest, TheLastReferenceReleasesTheBuffer) {
  const auto pool = MakePool({.buffer_size = {kBlockSize}, .count = 1});
  Buffer one = pool->Allocate();
  {
    Buffer two = one;
    EXPECT_EQ(two.data(), one.data());
    Buffer three = std::move(two);
    one = three;  // to the same slot
    one = Buffer();
    EXPECT_EQ(pool->in_use(), 1U);
    const Buffer& self = three;
    three = self;
    EXPECT_EQ(pool->in_use(), 1U);
  }
  EXPECT_EQ(pool->in_use(), 0U);
}

TEST(BufferPoolTest, AllocateWaitsForARelease) {
  const auto pool = MakePool({.buffer_size = {kBlockSize}, .count = 1});
  Buffer held = pool->Allocate();
  std::byte* address = held.data();
  auto allocated = StartUntilBlocked([&] { return pool->Allocate().data(); });
  EXPECT_FALSE(HasEnded(allocated));
  held = Buffer();
  EXPECT_EQ(allocated.get(), address);
  EXPECT_EQ(pool->in_use(), 0U);
}

TEST(BufferPoolTest, ManyThreadsShareABoundedPool) {
  const auto pool = MakePool({.buffer_size = {kBlockSize}, .count = 3});
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 2000; ++i) {
        const Buffer buffer = pool->Allocate();
        std::memset(buffer.data(), t, 64);
        const Buffer copy = buffer;
        EXPECT_EQ(copy.bytes()[63], static_cast<std::byte>(t));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool->in_use(), 0U);
}

TEST(BufferPoolTest, TryFillTakesWhatIsFreeAndFillTheRest) {
  const auto pool = MakePool({.buffer_size = {kBlockSize}, .count = 3});
  Buffer held = pool->Allocate();
  std::vector<Buffer> buffers;
  EXPECT_FALSE(pool->TryFill(3, &buffers));
  EXPECT_FALSE(pool->AnyWaits());
  EXPECT_EQ(buffers.size(), 2U);
  EXPECT_TRUE(pool->TryFill(1, &buffers)) << "more than wanted is enough";
  auto filled = StartUntilBlocked([&] {
    pool->Fill(3, &buffers);
    return buffers.size();
  });
  held = Buffer();
  EXPECT_EQ(filled.get(), 3U);
  EXPECT_EQ(pool->in_use(), 3U);
}

TEST(BufferPoolTest, WhoNeedsOneWaitsBehindWhoNeedsSeveral) {
  const auto pool = MakePool({.buffer_size = {kBlockSize}, .count = 3});
  std::vector<Buffer> held, several;
  ASSERT_TRUE(pool->TryFill(3, &held));
  auto filled = StartUntilBlocked([&] {
    pool->Fill(3, &several);
    return several.size();
  });
  EXPECT_TRUE(pool->AnyWaits());
  held.pop_back();
  EXPECT_FALSE(pool->TryAllocate());
  std::vector<Buffer> more;
  EXPECT_FALSE(pool->TryFill(1, &more));
  auto one = StartUntilBlocked([&] { return static_cast<bool>(pool->Allocate()); });
  held.clear();
  EXPECT_EQ(filled.get(), 3U);
  EXPECT_FALSE(HasEnded(one));
  several.clear();
  EXPECT_TRUE(one.get());
}

TEST(BufferPoolTest, WhoWaitsCallsForRelief) {
  const auto pool = MakePool({.buffer_size = {kBlockSize}, .count = 1});
  Buffer held = pool->Allocate();
  std::vector<Buffer> buffers;
  pool->Fill(1, &buffers, [&] { held = Buffer(); });
  EXPECT_EQ(buffers.size(), 1U);
}

// Were the buffers taken one by one, two callers would soon wait for each other.
TEST(BufferPoolTest, CallersOfFillDoNotWaitForOneAnother) {
  const auto pool = MakePool({.buffer_size = {kBlockSize}, .count = 5});
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 2000; ++i) {
        std::vector<Buffer> buffers;
        pool->Fill(1 + t % 5, &buffers);
        EXPECT_EQ(buffers.size(), 1 + t % 5);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool->in_use(), 0U);
}

TEST(BufferPoolTest, ImpossibleOptionsAreRefused) {
  EXPECT_EQ(BufferPool::Create({.buffer_size = {1000}}).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(BufferPool::Create({.buffer_size = {0}}).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(BufferPool::Create({.count = 0}).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(BufferPool::Create({.headroom = {kBlockSize + 1}}).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(BufferPool::Create({.count = ~size_t{0}}).error().code, ErrorCode::kInvalid);
}

TEST(BufferPoolTest, AnArenaTooLargeToMapIsOutOfMemory) {
  const auto pool = BufferPool::Create({.buffer_size = {kTiB}, .count = 1'000'000, .name = "huge"});
  ASSERT_FALSE(pool.has_value());
  EXPECT_EQ(pool.error().code, ErrorCode::kNoMemory);
  EXPECT_NE(pool.error().what.find("huge"), std::string::npos);
}

TEST(BufferPoolDeathTest, DestructionWithABufferInUseAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto pool = std::move(*BufferPool::Create({.buffer_size = {kBlockSize}, .count = 1}));
        const Buffer buffer = pool->Allocate();
        pool.reset();
      },
      "");
}

}  // namespace
}  // namespace weightfs
