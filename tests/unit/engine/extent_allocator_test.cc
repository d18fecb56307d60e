// SPDX-License-Identifier: Apache-2.0
#include "engine/extent_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <limits>
#include <random>
#include <thread>

#include "engine/free_extent_tree.h"

namespace weightfs {
namespace {

constexpr uint64_t kWindow = 512;  // the default alignment, in blocks

BlockRun Blocks(uint64_t start, uint64_t count) { return {{start}, {count}}; }

std::unique_ptr<ExtentAllocator> Make(BlockRun space, unsigned groups = 1) {
  auto allocator = ExtentAllocator::Create({.space = space, .groups = groups});
  EXPECT_TRUE(allocator.has_value());
  return std::move(*allocator);
}

ErrorCode CodeOf(const auto& result) { return result.has_value() ? ErrorCode{255} : result.error().code; }

// An allocator whose free space is exactly `free`.
std::unique_ptr<ExtentAllocator> MakeWithFree(uint64_t blocks, std::initializer_list<BlockRun> free,
                                              unsigned groups = 1) {
  auto allocator = Make(Blocks(0, blocks), groups);
  EXPECT_TRUE(allocator->MarkUsed(Blocks(0, blocks)).has_value());
  for (const BlockRun run : free) EXPECT_TRUE(allocator->Free(run).has_value());
  return allocator;
}

TEST(ExtentAllocator, RefusesSpaceAndOptionsItCannotServe) {
  const auto code = [](ExtentAllocator::Options options) { return CodeOf(ExtentAllocator::Create(options)); };
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(code({.space = Blocks(0, 0)}), ErrorCode::kInvalid);
  EXPECT_EQ(code({.space = Blocks(kMost - 5, 10)}), ErrorCode::kInvalid);
  EXPECT_EQ(code({.space = Blocks(0, kMost)}), ErrorCode::kInvalid);
  EXPECT_EQ(code({.space = Blocks(0, 1000), .alignment = {0}}), ErrorCode::kInvalid);
  EXPECT_EQ(code({.space = Blocks(0, 1000), .alignment = {3}}), ErrorCode::kInvalid);
  EXPECT_EQ(code({.space = Blocks(0, 1000), .alignment = {1u << 17}}), ErrorCode::kInvalid);
  EXPECT_EQ(code({.space = Blocks(0, 1000), .groups = 65}), ErrorCode::kInvalid);
  EXPECT_EQ(code({.space = Blocks(0, 1ull << 33), .groups = 1}), ErrorCode::kInvalid);
  EXPECT_EQ(code({.space = Blocks(0, 65ull << 32)}), ErrorCode::kInvalid);
}

TEST(ExtentAllocator, ServesAPebibyte) {
  const auto allocator = Make(Blocks(512, 63ull << 32), 0);
  const auto run = allocator->Allocate({.count = {kWindow}, .aligned = true, .group_hint = 63});
  ASSERT_TRUE(run.has_value());
  EXPECT_GT(run->start.value, 60ull << 32);
  EXPECT_TRUE(allocator->Free(*run).has_value());
  EXPECT_EQ(allocator->statistics().free.value, 63ull << 32);
}

TEST(ExtentAllocator, RefusesARequestThatCannotBeRight) {
  const auto allocator = Make(Blocks(0, 1000));
  EXPECT_EQ(CodeOf(allocator->Allocate({.count = {0}})), ErrorCode::kInvalid);
  EXPECT_EQ(CodeOf(allocator->Allocate({.count = {5}, .minimum = {6}})), ErrorCode::kInvalid);
  EXPECT_EQ(CodeOf(allocator->Allocate({.count = {5000}, .minimum = {5000}})), ErrorCode::kNoSpace);
}

TEST(ExtentAllocator, AlignedRunsBeginOnDeviceMultiplesEvenIfTheSpaceDoesNot) {
  const auto allocator = Make(Blocks(700, 64 * kWindow), 4);
  for (unsigned i = 0; i < 40; ++i) {
    const auto run = allocator->Allocate({.count = {kWindow}, .aligned = true, .group_hint = i});
    ASSERT_TRUE(run.has_value());
    EXPECT_EQ(run->start.value % kWindow, 0u);
    EXPECT_EQ(run->count.value, kWindow);
  }
}

TEST(ExtentAllocator, ContinuesTheLastExtentOfAFile) {
  const auto allocator = Make(Blocks(0, 64 * kWindow));
  const auto first = allocator->Allocate({.count = {kWindow + 3}, .aligned = true});
  ASSERT_TRUE(first.has_value());
  const auto second = allocator->Allocate({.count = {kWindow}, .after = first->end(), .aligned = true});
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(*second, (BlockRun{first->end(), {kWindow}}));
}

TEST(ExtentAllocator, ContinuesIntoTheNextGroup) {
  const auto allocator = Make(Blocks(0, 8 * kWindow), 2);
  ASSERT_TRUE(allocator->MarkUsed(Blocks(0, 4 * kWindow)).has_value());
  const auto run = allocator->Allocate({.count = {10}, .after = DeviceBlock{4 * kWindow}});
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(*run, Blocks(4 * kWindow, 10));
}

TEST(ExtentAllocator, ContinuesWithAShorterRunThatKeepsTheAlignment) {
  const auto allocator = MakeWithFree(64 * kWindow, {Blocks(kWindow + 10, kWindow), Blocks(8 * kWindow, 8 * kWindow)});
  const ExtentAllocator::Request request{.count = {4 * kWindow}, .after = DeviceBlock{kWindow + 10}, .aligned = true};
  const auto first = allocator->Allocate(request);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(*first, Blocks(kWindow + 10, kWindow - 10));
  const auto second = allocator->Allocate(request);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(*second, Blocks(8 * kWindow, 4 * kWindow));
}

TEST(ExtentAllocator, DoesNotContinueWithLessThanTheMinimum) {
  const auto allocator = MakeWithFree(64 * kWindow, {Blocks(100, 5), Blocks(300, 40)});
  const auto run = allocator->Allocate({.count = {20}, .minimum = {6}, .after = DeviceBlock{100}});
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(*run, Blocks(300, 20));
}

TEST(ExtentAllocator, AWrongPlaceToContinueIsOnlyAHint) {
  const auto allocator = MakeWithFree(64 * kWindow, {Blocks(300, 40)});
  for (const uint64_t after : {uint64_t{7}, 64 * kWindow, std::numeric_limits<uint64_t>::max()}) {
    const auto run = allocator->Allocate({.count = {10}, .after = DeviceBlock{after}});
    EXPECT_TRUE(run.has_value());
  }
}

TEST(ExtentAllocator, TakesAChunkOfTheRightClassBeforeBreakingALargerOne) {
  const auto allocator = MakeWithFree(256 * kWindow, {Blocks(0, 64 * kWindow), Blocks(100 * kWindow, 4 * kWindow),
                                                      Blocks(128 * kWindow, 16 * kWindow)});
  const auto run = allocator->Allocate({.count = {4 * kWindow}, .aligned = true});
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(*run, Blocks(100 * kWindow, 4 * kWindow));
  const auto split = allocator->Allocate({.count = {4 * kWindow}, .aligned = true});
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(*split, Blocks(128 * kWindow, 4 * kWindow));
}

TEST(ExtentAllocator, AnotherGroupOfTheRightClassComesBeforeBreakingAtHome) {
  const auto allocator = MakeWithFree(256 * kWindow, {Blocks(0, 64 * kWindow), Blocks(200 * kWindow, 4 * kWindow)}, 2);
  const auto run = allocator->Allocate({.count = {4 * kWindow}, .aligned = true, .group_hint = 0});
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(*run, Blocks(200 * kWindow, 4 * kWindow));
}

TEST(ExtentAllocator, TheHintChoosesTheGroup) {
  const auto allocator = Make(Blocks(0, 256 * kWindow), 4);
  for (unsigned hint = 0; hint < 8; ++hint) {
    const auto run = allocator->Allocate({.count = {kWindow}, .aligned = true, .group_hint = hint});
    ASSERT_TRUE(run.has_value());
    EXPECT_EQ(run->start.value / (64 * kWindow), hint % 4);
  }
}

TEST(ExtentAllocator, SmallRunsLeaveAlignedWindowsWholeWhileTheyCan) {
  const auto allocator = MakeWithFree(
      64 * kWindow, {Blocks(3, 200), Blocks(4 * kWindow, 4 * kWindow), Blocks(20 * kWindow - 30, kWindow + 50)});
  // 200 in a small chunk, and 30 before and 20 after the window of the last one.
  for (int i = 0; i < 25; ++i) {
    const auto run = allocator->Allocate({.count = {10}});
    ASSERT_TRUE(run.has_value());
    EXPECT_EQ(run->count.value, 10u);
  }
  EXPECT_EQ(allocator->statistics().free_extents, 2u);
  EXPECT_EQ(allocator->Allocate({.count = {4 * kWindow}, .aligned = true}).value(), Blocks(4 * kWindow, 4 * kWindow));
  EXPECT_EQ(allocator->Allocate({.count = {kWindow}, .aligned = true}).value(), Blocks(20 * kWindow, kWindow));
}

TEST(ExtentAllocator, SmallRunsBreakTheLeastLargeChunkAtItsEnd) {
  const auto allocator = MakeWithFree(64 * kWindow, {Blocks(0, 8 * kWindow), Blocks(16 * kWindow, 2 * kWindow)});
  EXPECT_EQ(allocator->Allocate({.count = {10}}).value(), Blocks(18 * kWindow - 10, 10));
  EXPECT_EQ(allocator->Allocate({.count = {10}}).value(), Blocks(18 * kWindow - 20, 10));
}

TEST(ExtentAllocator, ReturnsTheLongestAlignedRunWhenTheWholeIsNowhere) {
  const auto allocator = MakeWithFree(
      256 * kWindow, {Blocks(10, kWindow), Blocks(64 * kWindow, 2 * kWindow), Blocks(200 * kWindow, 3 * kWindow)}, 4);
  const auto run = allocator->Allocate({.count = {32 * kWindow}, .aligned = true});
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(*run, Blocks(200 * kWindow, 3 * kWindow));
}

TEST(ExtentAllocator, AlignedRequestsFallBackToUnalignedRuns) {
  // The second chunk has 100 aligned blocks and the first one none: neither is worth using.
  const auto allocator = MakeWithFree(64 * kWindow, {Blocks(1, kWindow - 2), Blocks(4 * kWindow - 40, 140)});
  EXPECT_EQ(allocator->Allocate({.count = {kWindow}, .aligned = true}).value(), Blocks(1, kWindow - 2));
  EXPECT_EQ(allocator->Allocate({.count = {60}, .aligned = true}).value(), Blocks(4 * kWindow, 60));
}

TEST(ExtentAllocator, NoSpaceOnlyWhenNoRunOfTheMinimumIsFreeAnywhere) {
  const auto allocator =
      MakeWithFree(256 * kWindow, {Blocks(7, 100), Blocks(130 * kWindow, 101), Blocks(250 * kWindow, 99)}, 4);
  EXPECT_EQ(CodeOf(allocator->Allocate({.count = {500}, .minimum = {102}})), ErrorCode::kNoSpace);
  EXPECT_EQ(allocator->Allocate({.count = {500}, .minimum = {101}}).value(), Blocks(130 * kWindow, 101));
  EXPECT_EQ(CodeOf(allocator->Allocate({.count = {500}, .minimum = {101}})), ErrorCode::kNoSpace);
}

TEST(ExtentAllocator, AllocatesEveryLastBlock) {
  const auto allocator = Make(Blocks(1000, 3001), 3);
  std::vector<bool> used(3001);
  uint64_t total = 0;
  while (const auto run = allocator->Allocate({.count = {97}, .aligned = total % 2 == 0})) {
    for (uint64_t i = 0; i < run->count.value; ++i) {
      const uint64_t block = run->start.value - 1000 + i;
      ASSERT_FALSE(used.at(block));
      used[block] = true;
    }
    total += run->count.value;
  }
  EXPECT_EQ(total, 3001u);
  EXPECT_EQ(allocator->statistics().free.value, 0u);
}

TEST(ExtentAllocator, MarkUsedRefusesWhatIsTakenOrOutsideAndChangesNothing) {
  const auto allocator = Make(Blocks(100, 8 * kWindow), 4);
  ASSERT_TRUE(allocator->MarkUsed(Blocks(3000, 10)).has_value());
  const auto before = allocator->statistics();
  for (const BlockRun wrong :
       {Blocks(99, 5), Blocks(0, 5), Blocks(100 + 8 * kWindow - 1, 2), Blocks(3005, 1), Blocks(2990, 11),
        Blocks(3009, 5), Blocks(100, 8 * kWindow), Blocks(200, std::numeric_limits<uint64_t>::max()),
        Blocks(std::numeric_limits<uint64_t>::max(), 2)})
    EXPECT_EQ(CodeOf(allocator->MarkUsed(wrong)), ErrorCode::kCorrupt) << wrong.start.value;
  EXPECT_EQ(allocator->statistics().free, before.free);
  EXPECT_EQ(allocator->statistics().free_extents, before.free_extents);
  EXPECT_TRUE(allocator->MarkUsed(Blocks(2990, 10)).has_value());
}

TEST(ExtentAllocator, FreeRefusesWhatIsFreeOrOutsideAndChangesNothing) {
  const auto allocator = Make(Blocks(0, 8 * kWindow), 4);
  ASSERT_TRUE(allocator->MarkUsed(Blocks(500, 3000)).has_value());
  for (const BlockRun wrong : {Blocks(499, 5), Blocks(499, 3002), Blocks(3499, 2), Blocks(0, 1), Blocks(8 * kWindow, 1),
                               Blocks(600, std::numeric_limits<uint64_t>::max())})
    EXPECT_EQ(CodeOf(allocator->Free(wrong)), ErrorCode::kCorrupt) << wrong.start.value;
  EXPECT_EQ(allocator->statistics().free.value, 8 * kWindow - 3000);
  EXPECT_TRUE(allocator->Free(Blocks(500, 3000)).has_value());
  EXPECT_EQ(CodeOf(allocator->Free(Blocks(500, 3000))), ErrorCode::kCorrupt);
}

TEST(ExtentAllocator, RunsOverGroupBordersAreMarkedAndFreedWhole) {
  const auto allocator = Make(Blocks(0, 8 * kWindow), 4);
  ASSERT_TRUE(allocator->MarkUsed(Blocks(100, 6 * kWindow)).has_value());
  EXPECT_EQ(allocator->statistics().free.value, 2 * kWindow);
  ASSERT_TRUE(allocator->Free(Blocks(100, 6 * kWindow)).has_value());
  const auto statistics = allocator->statistics();
  EXPECT_EQ(statistics.free.value, 8 * kWindow);
  EXPECT_EQ(statistics.free_extents, 4u);
  EXPECT_EQ(statistics.largest_free.value, 2 * kWindow);
}

TEST(ExtentAllocator, EmptyRunsChangeNothing) {
  const auto allocator = Make(Blocks(0, 1000));
  EXPECT_TRUE(allocator->MarkUsed(Blocks(5, 0)).has_value());
  EXPECT_TRUE(allocator->Free(Blocks(5, 0)).has_value());
  EXPECT_EQ(allocator->statistics().free.value, 1000u);
}

TEST(ExtentAllocator, FreedNeighborsMerge) {
  const auto allocator = MakeWithFree(1000, {Blocks(10, 5), Blocks(20, 5), Blocks(15, 5)});
  const auto statistics = allocator->statistics();
  EXPECT_EQ(statistics.free_extents, 1u);
  EXPECT_EQ(statistics.largest_free.value, 15u);
}

TEST(ExtentAllocator, AMillionFreeExtentsCostAtMostFortyBytesEach) {
  constexpr uint64_t kExtents = 1'000'000;
  const auto allocator = Make(Blocks(0, 2 * kExtents), 64);
  for (uint64_t i = 0; i < kExtents; ++i) ASSERT_TRUE(allocator->MarkUsed(Blocks(2 * i, 1)).has_value());
  const auto statistics = allocator->statistics();
  EXPECT_EQ(statistics.free_extents, kExtents);
  EXPECT_LE(statistics.memory.value, 40 * kExtents);
}

TEST(ExtentAllocator, ThreadsNeverShareABlock) {
  constexpr unsigned kThreads = 4;
  constexpr uint64_t kBlocks = 64 * kWindow;
  const auto allocator = Make(Blocks(0, kBlocks), 4);
  std::vector<std::atomic<int>> owners(kBlocks);
  std::atomic<int> faults{0};
  const auto give_back = [&](BlockRun run) {
    for (uint64_t b = run.start.value; b < run.end().value; ++b) owners[b].store(0, std::memory_order_relaxed);
    if (!allocator->Free(run)) ++faults;
  };
  const auto work = [&](unsigned thread) {
    std::mt19937 random(thread);
    std::vector<BlockRun> held;
    for (int i = 0; i < 20'000; ++i) {
      if (held.size() < 16 && random() % 2 == 0) {
        const auto run = allocator->Allocate({.count = {1 + random() % 1500},
                                              .aligned = random() % 2 == 0,
                                              .group_hint = static_cast<unsigned>(random())});
        if (!run) continue;
        for (uint64_t b = run->start.value; b < run->end().value; ++b)
          if (owners[b].exchange(1, std::memory_order_relaxed) != 0) ++faults;
        held.push_back(*run);
      } else if (!held.empty()) {
        give_back(held.back());
        held.pop_back();
      }
    }
    for (const BlockRun run : held) give_back(run);
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(faults, 0);
  EXPECT_EQ(allocator->statistics().free.value, kBlocks);
  EXPECT_EQ(allocator->statistics().free_extents, 4u);
}

// No thread holds more than its share, so a free block exists whenever one is requested.
TEST(ExtentAllocator, AFreeBlockIsFoundWhileOthersMoveTheirs) {
  constexpr unsigned kThreads = 4;
  const auto allocator = Make(Blocks(0, 64 * kWindow), 64);
  ASSERT_TRUE(allocator->MarkUsed(Blocks(0, 64 * kWindow)).has_value());
  for (uint64_t i = 0; i < kThreads; ++i) ASSERT_TRUE(allocator->Free(Blocks(i * 16 * kWindow, 1)).has_value());
  std::atomic<int> failures{0};
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      for (unsigned i = 0; i < 5'000; ++i) {
        const auto run = allocator->Allocate({.count = {1}, .group_hint = t * 31 + i});
        if (!run || !allocator->Free(*run)) ++failures;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

TEST(FreeExtentTree, StaysConsistentUnderRandomChanges) {
  FreeExtentTree tree(64);
  constexpr uint32_t kBlocks = 4096;
  std::vector<bool> free(kBlocks);
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    const uint32_t start = static_cast<uint32_t>(random() % kBlocks);
    const uint32_t length = std::min<uint32_t>(kBlocks - start, 1 + static_cast<uint32_t>(random() % 90));
    const auto first = free.begin() + start, last = first + length;
    const FreeExtent extent{start, length};
    const bool all = std::find(first, last, false) == last, none = std::find(first, last, true) == last;
    ASSERT_EQ(tree.AllFree(extent), all);
    ASSERT_EQ(tree.NoneFree(extent), none);
    if (random() % 2 == 0) {
      ASSERT_EQ(tree.Add(extent), none);
      if (none) std::fill(first, last, true);
    } else {
      ASSERT_EQ(tree.Remove(extent), all);
      if (all) std::fill(first, last, false);
    }
    ASSERT_TRUE(tree.IsConsistent()) << "after change " << i;
  }
}

}  // namespace
}  // namespace weightfs
