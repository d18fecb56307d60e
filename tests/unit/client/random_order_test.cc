// SPDX-License-Identifier: Apache-2.0
// Random parts of a file that are pending together read and leave the same bytes as if carried out one after the other.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "client/handle.h"
#include "common/unique_fd.h"
#include "tests/unit/client/files.h"
#include "tests/unit/client/operations.h"

namespace weightfs::client {
namespace {

// The kernel cannot drop a page from the page cache after a direct write while another access uses it there. The page
// then stays stale, and the kernel records EIO for all who have the file open.
TEST(RandomPartsTest, ConcurrentPartsLeaveThePageCacheConsistent) {
  constexpr unsigned kRounds = 200;
  const Folder folder;
  const auto handle = MakeHandle(2);
  Bytes bytes = RandomBytes(1 << 20);
  WriteFile(folder / "file", bytes);
  const UniqueFd watch(open((folder / "file").c_str(), O_RDONLY));
  ASSERT_TRUE(watch);
  std::mt19937 random(1);
  unsigned spoiled = 0;
  for (unsigned round = 0; round < kRounds; ++round) {
    size_t count = 0;
    for (size_t at = 0; at < bytes.size(); ++count) {
      const size_t wanted = random() % 2 == 0 ? 1 + random() % 20'000 : 65'536 + random() % 50'000;
      const auto part = MemoryView(std::span<std::byte>(bytes).subspan(at, std::min(bytes.size() - at, wanted)));
      const auto started = random() % 2 == 0 ? handle->StartWrite(folder / "file", part, {.offset = at})
                                             : handle->StartRead(folder / "file", part, {.offset = at});
      ASSERT_TRUE(started.has_value());
      at += part.size();
    }
    ASSERT_EQ(handle->Wait().count, count);
    spoiled += fsync(watch.get()) != 0 ? 1 : 0;
    if (round % 2 == 0) posix_fadvise(watch.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
  EXPECT_EQ(spoiled, 0U) << "of " << kRounds << " rounds";
  EXPECT_EQ(ReadFile(folder / "file"), bytes);
  EXPECT_EQ(bytes, RandomBytes(1 << 20));
}

// Compared with a sequential model, on a disk and in memory, where much more runs concurrently.
class RandomOrderTest : public testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomOrderTest, testing::Range(1U, 25U));

TEST_P(RandomOrderTest, ReadsAndTheFileEqualThoseOfASequentialRun) {
  constexpr size_t kSize = 100'000;
  constexpr size_t kOperations = 400;
  std::mt19937 random(GetParam());
  const auto below = [&](size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(random); };
  const Folder folder(GetParam() % 3 == 0 ? "" : "/dev/shm");
  const auto handle = MakeHandle(1 + GetParam() % 4);
  Bytes model(kSize);
  WriteFile(folder / "file", model);
  std::vector<Bytes> memory(kOperations);
  std::vector<Bytes> expected(kOperations);
  for (size_t i = 0; i < kOperations; ++i) {
    const bool atomic = below(8) == 0;
    const size_t begin = atomic ? 0 : below(kSize);
    const size_t size = atomic ? kSize : 1 + below(kSize - begin);
    if (atomic) {
      memory[i] = expected[i] = model = RandomBytes(size, static_cast<unsigned>(i));
      ASSERT_TRUE(handle->StartWrite(folder / "file", View(memory[i]), {.atomic = true}).has_value());
    } else if (below(2) == 0) {
      memory[i] = RandomBytes(size, static_cast<unsigned>(i));
      model = AfterWrite(std::move(model), begin, memory[i]);
      expected[i] = memory[i];
      ASSERT_TRUE(handle->StartWrite(folder / "file", View(memory[i]), {.offset = begin}).has_value());
    } else {
      memory[i] = Bytes(size);
      expected[i] = {model.begin() + static_cast<long>(begin), model.begin() + static_cast<long>(begin + size)};
      ASSERT_TRUE(handle->StartRead(folder / "file", View(memory[i]), {.offset = begin}).has_value());
    }
  }
  const auto completed = handle->Wait();
  EXPECT_EQ(completed.count, kOperations);
  EXPECT_EQ(ReadFile(folder / "file"), model);
  for (size_t i = 0; i < kOperations; ++i) {
    const auto [got, wanted] = std::mismatch(memory[i].begin(), memory[i].end(), expected[i].begin());
    EXPECT_EQ(got, memory[i].end()) << "operation " << i << " differs from byte " << got - memory[i].begin();
  }
}

}  // namespace
}  // namespace weightfs::client
