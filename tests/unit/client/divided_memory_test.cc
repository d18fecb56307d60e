// SPDX-License-Identifier: Apache-2.0
#include "client/divided_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "common/unique_fd.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

constexpr size_t kPage = kBlockSize;

std::shared_ptr<DividedMemory> Filled(size_t size) {
  auto memory = DividedMemory::Allocate(size).value();
  std::fill_n(memory->data(), size, std::byte{1});
  return memory;
}

bool AllAre(std::byte expected, const DividedMemory& memory, size_t begin, size_t size) {
  return std::ranges::all_of(std::span(memory.data() + begin, size), [=](std::byte b) { return b == expected; });
}

// Pages that went back to the kernel read as zeros.
bool IsGivenBack(const DividedMemory& memory, size_t begin, size_t size) {
  return AllAre(std::byte{0}, memory, begin, size);
}

bool IsKept(const DividedMemory& memory, size_t begin, size_t size) { return AllAre(std::byte{1}, memory, begin, size); }

TEST(DividedMemoryTest, AFreedPartGivesBackThePagesThatAreItsOwn) {
  const auto memory = Filled(8 * kMiB);
  auto first = memory->Take(0, 3 * kPage + 5);
  const auto second = memory->Take(3 * kPage + 5, kPage);
  first.reset();
  EXPECT_TRUE(IsGivenBack(*memory, 0, 3 * kPage));
  EXPECT_TRUE(IsKept(*memory, 3 * kPage, 8 * kMiB - 3 * kPage));
}

TEST(DividedMemoryTest, TheLastOfTheNeighborsGivesBackThePageThatTheyShare) {
  const auto memory = Filled(8 * kMiB);
  std::vector<std::shared_ptr<DividedMemory::Part>> parts;
  for (size_t at = 0; at < 2 * kPage; at += 64) parts.push_back(memory->Take(at, 64));
  std::shuffle(parts.begin(), parts.end(), std::mt19937(1));
  while (parts.size() > 1) parts.pop_back();
  const size_t kept_page = static_cast<size_t>(parts[0]->data() - memory->data()) / kPage;
  EXPECT_TRUE(IsKept(*memory, kept_page * kPage, kPage));
  EXPECT_TRUE(IsGivenBack(*memory, (1 - kept_page) * kPage, kPage));
  parts.clear();
  EXPECT_TRUE(IsGivenBack(*memory, 0, 2 * kPage));
  EXPECT_TRUE(IsKept(*memory, 2 * kPage, 8 * kMiB - 2 * kPage));
}

TEST(DividedMemoryTest, BytesThatWereNeverTakenStay) {
  const auto memory = Filled(8 * kMiB);
  memory->Take(100, 2 * kPage);
  EXPECT_TRUE(IsKept(*memory, 0, kPage));
  EXPECT_TRUE(IsGivenBack(*memory, kPage, kPage));
  EXPECT_TRUE(IsKept(*memory, 2 * kPage, kPage));
}

TEST(DividedMemoryTest, SmallMemoryIsAlignedToACacheLineAndGivesBackItsWholePages) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{65}, 5 * kPage}) {
    const auto memory = Filled(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 64, 0U);
    EXPECT_EQ(memory->size(), size);
  }
  const auto memory = Filled(5 * kPage);
  memory->Take(0, 5 * kPage);
  const auto address = reinterpret_cast<uintptr_t>(memory->data());
  const size_t first = RoundUp(address, kPage) - address;
  EXPECT_TRUE(IsKept(*memory, 0, first));  // other allocations have bytes of this page
  EXPECT_TRUE(IsGivenBack(*memory, first, 4 * kPage));
}

TEST(DividedMemoryTest, LargeMemoryBeginsOnAHugePage) {
  EXPECT_EQ(reinterpret_cast<uintptr_t>(Filled(4 * kMiB)->data()) % (2 * kMiB), 0U);
}

TEST(DividedMemoryTest, APartOutlivesTheMemory) {
  auto part = Filled(8 * kMiB)->Take(kPage, 2 * kPage);
  EXPECT_EQ(part->size(), 2 * kPage);
  EXPECT_EQ(part->data()[0], std::byte{1});
  part->data()[2 * kPage - 1] = std::byte{2};
}

TEST(DividedMemoryTest, FilesLeaveMappingsToOthers) {
  const UniqueFd file(memfd_create("file", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 1 << 20), 0);
  const auto map = [&] { return DividedMemory::Map(file.get(), 0, kPage); };
  std::vector<std::shared_ptr<DividedMemory>> mapped;
  auto last = map();
  for (; last && mapped.size() < 200'000; last = map()) mapped.push_back(std::move(*last));
  ASSERT_FALSE(last.has_value());
  EXPECT_EQ(last.error().error_number(), ENOMEM);
  EXPECT_TRUE(DividedMemory::Allocate(64 * kMiB).has_value());
  mapped.pop_back();
  EXPECT_TRUE(map().has_value());
}

TEST(DividedMemoryTest, MoreMemoryThanThereIsFails) {
  EXPECT_EQ(DividedMemory::Allocate(std::numeric_limits<size_t>::max()).error().error_number(), ENOMEM);
}

}  // namespace
}  // namespace weightfs::client
