// SPDX-License-Identifier: Apache-2.0
// Pins of blocks: they are counted per block, and parked runs wait for the last pin.
#include "store/space/space_pins.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace weightfs {
namespace {

DeviceRun Blocks(uint64_t start, uint64_t count, uint16_t device = 0) {
  return {DeviceId{device}, {DeviceBlock{start}, BlockCount{count}}};
}

std::vector<std::pair<uint64_t, uint64_t>> Places(const std::vector<DeviceRun>& runs) {
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const DeviceRun& run : runs) places.emplace_back(run.run.start.value, run.run.count.value);
  return places;
}

using Expected = std::vector<std::pair<uint64_t, uint64_t>>;

TEST(SpacePins, UnpinnedBlocksAreFreeAtOnce) {
  SpacePins pins(2);
  pins.Add(Blocks(10, 5, 1));
  std::vector<DeviceRun> free;
  pins.Park(Blocks(0, 100, 0), &free);
  EXPECT_EQ(Places(free), (Expected{{0, 100}}));
  free.clear();
  pins.Park(Blocks(0, 20, 1), &free);
  EXPECT_EQ(Places(free), (Expected{{0, 10}, {15, 5}}));
  EXPECT_EQ(pins.parked().value, 5U);
}

TEST(SpacePins, TheLastPinFrees) {
  SpacePins pins(1);
  pins.Add(Blocks(0, 10));
  pins.Add(Blocks(5, 10));
  EXPECT_EQ(pins.pinned().value, 15U);
  std::vector<DeviceRun> free;
  pins.Park(Blocks(0, 15), &free);
  EXPECT_TRUE(free.empty());
  pins.Remove(Blocks(0, 10), &free);
  EXPECT_EQ(Places(free), (Expected{{0, 5}}));
  free.clear();
  pins.Remove(Blocks(5, 10), &free);
  EXPECT_EQ(Places(free), (Expected{{5, 5}, {10, 5}}));
  EXPECT_EQ(pins.pinned().value, 0U);
  EXPECT_EQ(pins.parked().value, 0U);
}

TEST(SpacePins, AgreeWithACountOfEveryBlock) {
  constexpr uint64_t kBlocks = 64;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    SpacePins pins(1);
    std::vector<DeviceRun> held;
    std::vector<int> count(kBlocks), parked(kBlocks);
    const auto expect_freed = [&](const std::vector<DeviceRun>& free) {
      for (const DeviceRun& run : free) {
        for (uint64_t block = run.run.start.value; block < run.run.end().value; ++block) {
          ASSERT_EQ(count[block], 0);
          ASSERT_EQ(parked[block], 1);
          parked[block] = 2;  // free: must not be freed twice
        }
      }
    };
    for (int step = 0; step < 200; ++step) {
      std::vector<DeviceRun> free;
      const uint64_t start = random() % kBlocks, size = 1 + random() % (kBlocks - start);
      switch (random() % 3) {
        case 0: {
          bool mapped = true;  // only mapped blocks can be pinned
          for (uint64_t block = start; block < start + size; ++block) mapped = mapped && parked[block] == 0;
          if (!mapped) break;
          held.push_back(Blocks(start, size));
          pins.Add(held.back());
          for (uint64_t block = start; block < start + size; ++block) ++count[block];
          break;
        }
        case 1: {
          if (held.empty()) break;
          const size_t which = random() % held.size();
          const DeviceRun run = held[which];
          held.erase(held.begin() + static_cast<ptrdiff_t>(which));
          for (uint64_t block = run.run.start.value; block < run.run.end().value; ++block) --count[block];
          pins.Remove(run, &free);
          break;
        }
        default: {
          bool mapped = true;
          for (uint64_t block = start; block < start + size; ++block) mapped = mapped && parked[block] == 0;
          if (!mapped) break;
          for (uint64_t block = start; block < start + size; ++block) parked[block] = 1;
          pins.Park(Blocks(start, size), &free);
          break;
        }
      }
      expect_freed(free);
      uint64_t pinned = 0, waiting = 0;
      for (uint64_t block = 0; block < kBlocks; ++block) {
        pinned += count[block] > 0;
        waiting += count[block] > 0 && parked[block] == 1;
        ASSERT_FALSE(count[block] == 0 && parked[block] == 1) << "block " << block << " was never freed";
        if (parked[block] == 2) parked[block] = 0;  // allocated again
      }
      ASSERT_EQ(pins.pinned().value, pinned);
      ASSERT_EQ(pins.parked().value, waiting);
    }
  }
}

}  // namespace
}  // namespace weightfs
