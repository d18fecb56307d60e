// SPDX-License-Identifier: Apache-2.0
#include "io/huge_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <span>

#include "common/units.h"

namespace weightfs {
namespace {

bool AllZero(const HugePageMemory& memory) {
  return std::ranges::all_of(std::span(memory.data(), memory.size()), [](std::byte b) { return b == std::byte{0}; });
}

TEST(HugePageMemory, LargeMemoryBeginsOnAHugePage) {
  auto memory = HugePageMemory::Map(5 * kMiB + 1);
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->size(), 5 * kMiB + kBlockSize);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % (2 * kMiB), 0U);
  EXPECT_TRUE(AllZero(*memory));
  std::fill_n(memory->data(), memory->size(), std::byte{1});
}

TEST(HugePageMemory, SmallMemoryIsRoundedUpToPages) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}}) {
    auto memory = HugePageMemory::Map(size);
    ASSERT_TRUE(memory.has_value());
    EXPECT_EQ(memory->size(), kBlockSize);
    EXPECT_TRUE(AllZero(*memory));
  }
}

TEST(HugePageMemory, AMoveTransfersTheMapping) {
  auto memory = HugePageMemory::Map(kBlockSize);
  ASSERT_TRUE(memory.has_value());
  std::byte* data = memory->data();
  HugePageMemory moved = std::move(*memory);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(memory->data(), nullptr);
  data[0] = std::byte{7};
}

TEST(HugePageMemory, ImpossibleSizesAreErrors) {
  EXPECT_FALSE(HugePageMemory::Map(std::numeric_limits<size_t>::max()).has_value());
  EXPECT_FALSE(HugePageMemory::Map(size_t{1} << 60).has_value());
}

}  // namespace
}  // namespace weightfs
