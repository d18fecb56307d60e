// SPDX-License-Identifier: Apache-2.0
// The memory of hot files without a store: its limits, and what evicts what.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "io/shared_pages.h"
#include "store/file/hot_files.h"
#include "tests/support/result_asserts.h"

namespace weightfs {
namespace {

TEST(HotFiles, HugeFilesTakeNoLargeTablesAndFewAddresses) {
  HotFiles files(SharedPages::Create(), ByteCount{16 * kMiB});
  constexpr uint64_t kHuge = uint64_t{1} << 43, kMost = uint64_t{1} << 46;
  const auto before = mallinfo2();
  std::vector<HotFilePtr> made;
  while (made.size() <= kMost / kHuge) {
    auto file = files.Make(InodeId{made.size()}, kHuge, 1);
    if (!file) break;
    made.push_back(std::move(*file));
  }
  EXPECT_GT(made.size(), 0U);
  EXPECT_LT(made.size(), kMost / kHuge);
  const auto after = mallinfo2();
  EXPECT_LT(after.uordblks + after.hblkhd, before.uordblks + before.hblkhd + kMiB);
  EXPECT_EQ(files.Reserve(*made[0], 0, kHuge / kChunkBytes).error().code, ErrorCode::kNoMemory);
}

TEST(HotFiles, MemoryOfALoadThatDoesNotGoOnIsGivenBack) {
  HotFiles files(SharedPages::Create(), ByteCount{16 * kMiB});
  HotFilePtr file = Must(files.Make(InodeId{1}, 16 * kMiB, 1));
  files.Begin(file);
  const auto now = std::chrono::steady_clock::now();
  const auto count = [&](std::chrono::seconds later) {
    files.Count(now + later);
    return files.used_bytes();
  };
  ASSERT_OK(files.Reserve(*file, 0, 8));
  EXPECT_EQ(count(std::chrono::hours(1)), 16 * kMiB) << "somebody loads it";
  ASSERT_OK(files.Reserve(*file, 4, 8, now + std::chrono::hours(1)));  // and goes on
  const UniqueFd kept = Must(files.OpenForReading(*file, 8, now + std::chrono::hours(1)));
  file.reset();
  EXPECT_EQ(count(std::chrono::minutes(65)), 16 * kMiB) << "a request that took an hour has just ended";
  ASSERT_OK(files.Reserve(*files.Find(InodeId{1}), 0, 1, now + std::chrono::minutes(74)));
  EXPECT_EQ(count(std::chrono::minutes(75)), kChunkBytes) << "another program has asked for one chunk";
  EXPECT_EQ(count(std::chrono::hours(2)), 0U);
}

TEST(HotFiles, AMachineWithoutPagesGivesNone) {
  HotFiles files(SharedPages::Create(/*may_mount=*/true, ByteCount{4 * kMiB}), ByteCount{16 * kMiB});
  if (!files.on_tmpfs()) GTEST_SKIP() << "no right to mount";
  const HotFilePtr file = Must(files.Make(InodeId{1}, 8 * kMiB, 1));
  ASSERT_OK(files.Provide(*file, 0));
  ASSERT_OK(files.Provide(*file, 1));
  ASSERT_OK(files.Provide(*file, 1));
  EXPECT_EQ(files.Provide(*file, 2).error().code, ErrorCode::kNoMemory);
}

// Contents of one chunk, of which the first ones are in use.
std::vector<UniqueFd> Fill(HotFiles& files, uint64_t count, uint64_t used) {
  std::vector<UniqueFd> kept;
  for (uint64_t i = 0; i < count; ++i) {
    const HotFilePtr file = Must(files.Make(InodeId{i}, 1, 1));
    files.Begin(file);
    EXPECT_TRUE(files.Reserve(*file, 0, 1).has_value());
    if (i < used) kept.push_back(Must(files.OpenForReading(*file, 1)));
  }
  return kept;
}

// Every read waits while a request asks the kernel about contents in use, so each asks about few. All are in use.
void ExpectFewLooks(HotFiles& files, std::vector<UniqueFd> kept) {
  for (int i = 0; i < 200; ++i) ASSERT_EQ(files.Make(InodeId{1000}, 1, 1).error().code, ErrorCode::kNoMemory);
  EXPECT_EQ(files.counters().evictions, 0U);
  kept.erase(kept.begin() + 500);
  int refused = 0;
  while (refused < 1000 && !files.Make(InodeId{1000}, 1, 1)) ++refused;
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 1000);
  kept.clear();
  ASSERT_OK(files.Make(InodeId{1001}, 1000 * kChunkBytes, 1000));
}

TEST(HotFiles, ARefusedRequestLooksAtFewContentsInUse) {
  HotFiles files(SharedPages::Create(), ByteCount{1000 * kChunkBytes});
  ExpectFewLooks(files, Fill(files, 1000, 1000));
}

TEST(HotFiles, ARefusedRequestLooksAtFewReplacedContentsInUse) {
  HotFiles files(SharedPages::Create(), ByteCount{1000 * kChunkBytes});
  std::vector<UniqueFd> kept = Fill(files, 1000, 1000);
  for (uint64_t i = 0; i < 1000; ++i) files.Forget(InodeId{i});
  ExpectFewLooks(files, std::move(kept));
}

TEST(HotFiles, AnIdleContentBehindManyInUseIsFound) {
  HotFiles files(SharedPages::Create(), ByteCount{1000 * kChunkBytes});
  std::vector<UniqueFd> kept = Fill(files, 1000, 999);
  Result<HotFilePtr> made = ErrorCode::kNoMemory;
  for (int i = 0; i < 1000 && !made; ++i) made = files.Make(InodeId{1000}, 1, 1);
  ASSERT_OK(made);
  EXPECT_EQ(files.Find(InodeId{999}), nullptr);
  EXPECT_EQ(files.counters().evictions, 1U);
  // Those that were found in use are found again when they are not.
  files.Begin(*made);
  ASSERT_OK(files.Reserve(**made, 0, 1));
  kept.erase(kept.begin() + 100);
  bool found = false;
  for (int i = 0; i < 1000 && !found; ++i) found = files.Make(InodeId{1001}, 1, 1).has_value();
  EXPECT_TRUE(found);
  EXPECT_EQ(files.Find(InodeId{100}), nullptr);
}

TEST(HotFiles, AreCountedWhileOthersAreMade) {
  HotFiles files(SharedPages::Create(), ByteCount{16 * kMiB});
  std::atomic<bool> ended{false};
  std::thread counts([&] {
    while (!ended) files.Count();
  });
  for (uint64_t i = 0; i < 3000; ++i) ASSERT_OK(files.Make(InodeId{i}, kMiB, 1));
  ended = true;
  counts.join();
}

// Contents that nobody uses are dropped one after the other, whatever their number.
TEST(HotFiles, ManyMakeRoomInOneGo) {
  HotFiles files(SharedPages::Create(), ByteCount{1000 * kChunkBytes});
  for (uint64_t i = 0; i < 1000; ++i) {
    const HotFilePtr file = Must(files.Make(InodeId{i}, 1, 1));
    ASSERT_OK(files.Reserve(*file, 0, 1));
    files.Begin(file);
  }
  EXPECT_EQ(files.used_bytes(), 1000 * kChunkBytes);
  files.Shrink(10 * kChunkBytes);
  EXPECT_EQ(files.used_bytes(), 10 * kChunkBytes);
  EXPECT_EQ(files.counters().evictions, 990U);
  EXPECT_EQ(files.Find(InodeId{989}), nullptr);
  EXPECT_NE(files.Find(InodeId{990}), nullptr);
  const HotFilePtr large = Must(files.Make(InodeId{1000}, 1000 * kChunkBytes, 1000));
  ASSERT_OK(files.Reserve(*large, 0, 1000));
  EXPECT_EQ(files.used_bytes(), 1000 * kChunkBytes);
}

TEST(SharedPages, AskForHugePages) {
  const auto pages = SharedPages::Create();
  const auto file = Must(pages->Make(ByteCount{5 * kMiB}));
  std::ifstream mappings("/proc/self/smaps");
  const std::string begin = fmt::format("{:x}-", reinterpret_cast<uintptr_t>(file->data()));
  std::string line;
  while (std::getline(mappings, line) && !line.starts_with(begin)) {
  }
  while (std::getline(mappings, line) && !line.starts_with("VmFlags:")) {
  }
  EXPECT_NE(line.find(" hg"), std::string::npos) << "of " << begin << ": " << line;
}

TEST(SharedPages, AreMountedWhereNobodySeesThem) {
  const auto mounts = [] {
    std::ifstream list("/proc/self/mountinfo");
    return std::string(std::istreambuf_iterator<char>(list), {});
  };
  const auto namespace_of = [](const char* thread) { return std::filesystem::read_symlink(thread); };
  const std::string before = mounts();
  const auto own = namespace_of("/proc/thread-self/ns/mnt");
  const auto pages = SharedPages::Create();
  ASSERT_NE(pages, nullptr);
  if (!pages->on_tmpfs()) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(mounts(), before);
  EXPECT_EQ(namespace_of("/proc/thread-self/ns/mnt"), own);
  const auto file = Must(pages->Make(ByteCount{kMiB}));
  const UniqueFd reading = Must(file->OpenForReading());
  const UniqueFd writing(open(("/proc/self/fd/" + std::to_string(reading.get())).c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(writing);
  EXPECT_EQ(errno, EROFS);
}

TEST(SharedPages, SayWhetherAnybodyHasAFile) {
  for (const bool may_mount : {true, false}) {
    const auto pages = SharedPages::Create(may_mount);
    ASSERT_NE(pages, nullptr);
    const auto file = Must(pages->Make(ByteCount{5 * kMiB}));
    std::memcpy(file->data() + kMiB, "bytes", 5);
    EXPECT_FALSE(file->IsShared());
    UniqueFd descriptor = Must(file->OpenForReading());
    if (!pages->on_tmpfs()) {
      EXPECT_EQ(fchmod(descriptor.get(), 0600), 0);  // its user may do that
      const UniqueFd writing(
          open(("/proc/self/fd/" + std::to_string(descriptor.get())).c_str(), O_RDWR | O_CLOEXEC));
      EXPECT_TRUE(!writing || (pwrite(writing.get(), "x", 1, 0) < 0 && ftruncate(writing.get(), 0) != 0));
      EXPECT_EQ(mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, writing.get(), 0), MAP_FAILED);
    }
    EXPECT_TRUE(file->IsShared());
    void* mapped = mmap(nullptr, 2 * kMiB, PROT_READ, MAP_SHARED, descriptor.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    EXPECT_EQ(mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0), MAP_FAILED);
    descriptor = UniqueFd();
    EXPECT_TRUE(file->IsShared()) << "mapped";
    EXPECT_EQ(std::memcmp(static_cast<std::byte*>(mapped) + kMiB, "bytes", 5), 0);
    munmap(mapped, 2 * kMiB);
    EXPECT_FALSE(file->IsShared());
  }
}

}  // namespace
}  // namespace weightfs
