// SPDX-License-Identifier: Apache-2.0
// Leases that map: content of files in memory that programs share.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "io/shared_pages.h"
#include "store/file/hot_files.h"
#include "tests/support/result_asserts.h"
#include "tests/support/test_store.h"
#include "tests/support/thread_state.h"

namespace weightfs {
namespace {

constexpr uint64_t kEnd = UINT64_MAX;

TestStoreOptions WithHot(uint64_t bytes) {
  TestStoreOptions options;
  options.store.hot_memory = ByteCount{bytes};
  return options;
}

// The bytes of a lease as a program maps them; empty if they cannot be.
class Mapping {
 public:
  explicit Mapping(const MapLease& lease) : size_(lease.file_size) {
    void* mapped = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, lease.memory.get(), 0);
    if (mapped != MAP_FAILED) data_ = static_cast<char*>(mapped);
  }
  Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  std::string_view bytes() const { return data_ == nullptr ? std::string_view() : std::string_view(data_, size_); }

 private:
  char* data_ = nullptr;
  const size_t size_;
};

class HotFilesTest : public ::testing::Test {
 protected:
  InodePtr Make(const std::string& name, const std::string& data) {
    const InodePtr file = store_.Create(name).value();
    EXPECT_TRUE(store_.WriteAt(file, 0, data).has_value());
    return file;
  }
  Result<MapLease> Map(const InodePtr& file, uint64_t offset = 0, uint64_t length = kEnd) {
    return store_->files().LeaseMap(file, offset, length);
  }
  Mapping MustMap(const InodePtr& file, uint64_t offset = 0, uint64_t length = kEnd) {
    return Mapping(Must(Map(file, offset, length)));
  }
  void Corrupt(const InodePtr& file, uint64_t block) {
    const auto extents = Must(store_->files().Extents(file, FileBlock{block}, 1));
    const FileExtent& extent = extents.at(0);
    store_.device().Corrupt(ToBytes(extent.start + (FileBlock{block} - extent.first)));
  }
  // The thread that has loaded the last chunk lets go of it a moment later.
  bool CountedDown(uint64_t bytes) {
    for (int i = 0; i < 10'000 && store_->Hot().used > bytes; ++i) {
      store_->CountHot();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return store_->Hot().used == bytes;
  }
  void Publish(const std::string& data);
  uint64_t DeviceReads() { return store_->statistics().device_read_bytes; }

  TestStore store_{WithHot(16 * kMiB)};
};

TEST_F(HotFilesTest, ShowUnsyncedWrites) {
  const std::string data = Pattern(1, 5 * kMiB + 123);
  const InodePtr file = Make("a", data);
  EXPECT_TRUE(MustMap(file).bytes() == data);
  ASSERT_OK(store_.WriteAt(file, 5000, "patch"));
  EXPECT_EQ(MustMap(file).bytes().substr(5000, 5), "patch");
}

TEST_F(HotFilesTest, KeepTheirContentWhateverHappensToTheFile) {
  const std::string data = Pattern(2, 3 * kMiB);
  const InodePtr file = Make("a", data);
  const Mapping before = MustMap(file);
  ASSERT_OK(store_.WriteAt(file, 0, Pattern(3, 3 * kMiB)));
  EXPECT_TRUE(before.bytes() == data);
  EXPECT_TRUE(MustMap(file).bytes() == Pattern(3, 3 * kMiB));
  ASSERT_OK(store_->files().Truncate(file, 0));
  ASSERT_OK(store_->SyncAll());
  EXPECT_TRUE(before.bytes() == data);
}

TEST_F(HotFilesTest, AreReadFromTheDeviceOnce) {
  const InodePtr file = Make("a", Pattern(4, 4 * kMiB));
  ASSERT_OK(store_->SyncAll());
  const uint64_t before = DeviceReads();
  const auto one = std::async(std::launch::async, [&] { return Map(file); });
  const Mapping other = MustMap(file);
  one.wait();
  EXPECT_TRUE(MustMap(file).bytes() == other.bytes());
  EXPECT_EQ(DeviceReads() - before, 4 * kMiB);
  EXPECT_TRUE(Must(store_.ReadAll(file)) == other.bytes());  // reads find them, too
  EXPECT_EQ(DeviceReads() - before, 4 * kMiB);
  store_->files().DropCached(file);
  EXPECT_TRUE(MustMap(file).bytes() == other.bytes());
  EXPECT_EQ(DeviceReads() - before, 8 * kMiB);
}

TEST_F(HotFilesTest, HolesAndUnwrittenBlocksAreZeros) {
  const InodePtr file = store_.Create("a").value();
  ASSERT_OK(store_.WriteAt(file, 5 * kMiB, "end"));
  ASSERT_OK(store_->files().Fallocate(file, FallocateMode::kAllocate, kMiB, kMiB));
  EXPECT_TRUE(MustMap(file).bytes() == std::string(5 * kMiB, '\0') + "end");
}

TEST_F(HotFilesTest, APartLoadsNoMore) {
  const std::string data = Pattern(5, 8 * kMiB);
  const InodePtr file = Make("a", data);
  const uint64_t before = DeviceReads();
  const Mapping part = MustMap(file, 3 * kMiB, 10);
  EXPECT_EQ(part.bytes().size(), data.size());
  EXPECT_TRUE(part.bytes().substr(2 * kMiB, 2 * kMiB) == data.substr(2 * kMiB, 2 * kMiB));
  EXPECT_TRUE(part.bytes().substr(4 * kMiB) == std::string(4 * kMiB, '\0'));
  EXPECT_EQ(DeviceReads() - before, 2 * kMiB);
  MustMap(file);
  EXPECT_TRUE(part.bytes() == data);  // the same memory
}

TEST_F(HotFilesTest, RangesBehindTheEndAreEmpty) {
  const InodePtr file = Make("a", "data");
  for (const uint64_t offset : {uint64_t{4}, uint64_t{5}, kEnd}) {
    const auto lease = Map(file, offset);
    ASSERT_OK(lease);
    EXPECT_EQ(lease->file_size, 4U);
    EXPECT_EQ(lease->end, 4U);
  }
}

TEST_F(HotFilesTest, DamageIsAnError) {
  const InodePtr file = Make("a", Pattern(6, 6 * kMiB));
  ASSERT_OK(store_->SyncAll());
  Corrupt(file, 600);
  EXPECT_EQ(Map(file).error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(MustMap(file, 0, 2 * kMiB).bytes().substr(0, 2 * kMiB) == Pattern(6, 6 * kMiB).substr(0, 2 * kMiB));
}

TEST_F(HotFilesTest, TheOldestMakesRoomUnlessItIsMapped) {
  std::vector<InodePtr> files;
  for (int i = 0; i < 3; ++i) files.push_back(Make(std::to_string(i), Pattern(10 + i, 6 * kMiB)));
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(MustMap(files[i]).bytes() == Pattern(10 + i, 6 * kMiB));
  }
  EXPECT_LE(store_->Hot().used, 16 * kMiB);
  EXPECT_GE(store_->Hot().evictions, 4U);
  const Mapping one = MustMap(files[0]), two = MustMap(files[1]);
  EXPECT_EQ(Map(files[2]).error().code, ErrorCode::kNoMemory);
  EXPECT_TRUE(one.bytes() == Pattern(10, 6 * kMiB) && two.bytes() == Pattern(11, 6 * kMiB));
}

TEST_F(HotFilesTest, ALargerFileDoesNotFit) {
  const InodePtr file = Make("a", Pattern(7, 17 * kMiB));
  EXPECT_EQ(Map(file).error().code, ErrorCode::kNoMemory);
  EXPECT_TRUE(MustMap(file, 0, 8 * kMiB).bytes().substr(0, kMiB) == Pattern(7, 17 * kMiB).substr(0, kMiB));
  EXPECT_LE(store_->Hot().used, 16 * kMiB);
}

TEST_F(HotFilesTest, NobodySeesTheBytesOfAnotherFile) {
  const InodePtr secret = Make("secret", std::string(12 * kMiB, 's'));
  const InodePtr file = Make("a", Pattern(8, 12 * kMiB));
  ASSERT_OK(store_->SyncAll());
  MustMap(secret);
  EXPECT_EQ(MustMap(file, 0, 4 * kMiB).bytes().find("ssssssss"), std::string_view::npos);
  store_->files().DropCached(file);
  // A part of the memory cannot be filled.
  MustMap(secret);
  Corrupt(file, 1600);
  EXPECT_EQ(Map(file).error().code, ErrorCode::kCorrupt);
  const Mapping part = MustMap(file, 0, 2 * kMiB);
  EXPECT_EQ(part.bytes().find("ssssssss"), std::string_view::npos);
}

TEST_F(HotFilesTest, NobodyWritesToTheMemory) {
  const auto lease = Map(Make("a", Pattern(9, kMiB)));
  ASSERT_OK(lease);
  const std::string again = "/proc/self/fd/" + std::to_string(lease->memory.get());
  EXPECT_LT(open(again.c_str(), O_RDWR | O_CLOEXEC), 0);
  EXPECT_EQ(mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, lease->memory.get(), 0), MAP_FAILED);
  EXPECT_NE(ftruncate(lease->memory.get(), 0), 0);
}

TEST_F(HotFilesTest, MemoryIsGivenBackUnlessItIsMapped) {
  const Mapping kept = MustMap(Make("a", Pattern(10, 4 * kMiB)));
  MustMap(Make("b", Pattern(11, 4 * kMiB)));
  EXPECT_EQ(store_->Hot().used, 8 * kMiB);
  // The thread that has loaded the last chunk lets go of it a moment later.
  for (int i = 0; i < 10'000 && store_->Hot().used > 4 * kMiB; ++i) {
    store_->ShrinkHot();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (int i = 0; i < 10; ++i) store_->ShrinkHot();
  EXPECT_EQ(store_->Hot().used, 4 * kMiB);
  EXPECT_TRUE(kept.bytes() == Pattern(10, 4 * kMiB));
}

TEST_F(HotFilesTest, AContentThatWasReplacedIsGivenBackWithItsLastMapping) {
  const InodePtr file = Make("a", Pattern(1, 4 * kMiB));
  {
    const Mapping mapped = MustMap(file);
    ASSERT_OK(store_.WriteAt(file, 0, "new"));
    store_->CountHot();
    EXPECT_EQ(store_->Hot().used, 4 * kMiB);
  }
  EXPECT_TRUE(CountedDown(0));
}

TEST_F(HotFilesTest, MemoryThatAProgramReadsBehindItsRangeCounts) {
  const InodePtr file = Make("a", Pattern(1, 12 * kMiB));
  const Mapping part = MustMap(file, 0, 10);
  EXPECT_EQ(store_->Hot().used, 2 * kMiB);
  EXPECT_EQ(part.bytes().substr(2 * kMiB).find_first_not_of('\0'), std::string_view::npos);
  store_->CountHot();
  EXPECT_EQ(store_->Hot().used, 12 * kMiB);
  EXPECT_EQ(Map(Make("b", Pattern(2, 6 * kMiB))).error().code, ErrorCode::kNoMemory);
}

TEST_F(HotFilesTest, WhatIsLoadedIsMappedAlsoBeyondTheLimit) {
  const InodePtr file = Make("a", Pattern(1, 12 * kMiB)), loaded = Make("b", Pattern(2, 2 * kMiB));
  const Mapping part = MustMap(file, 0, 10), all = MustMap(loaded);
  const Mapping other = MustMap(Make("c", Pattern(3, 12 * kMiB)), 0, 10);
  for (const Mapping* each : {&part, &other}) {
    EXPECT_EQ(each->bytes().substr(2 * kMiB).find_first_not_of('\0'), std::string_view::npos);
  }
  store_->CountHot();
  EXPECT_GT(store_->Hot().used, 16 * kMiB);
  const uint64_t before = DeviceReads();
  EXPECT_TRUE(MustMap(loaded).bytes() == Pattern(2, 2 * kMiB));
  EXPECT_EQ(DeviceReads(), before);
}

// Half of the memory is enough, although each thread may have found no content.
TEST(HotFiles, LoadsOfOneFileAtOnceReserveItOnce) {
  TestStore store(WithHot(3 * kChunkBytes));
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(1, 2 * kChunkBytes)));
  ASSERT_OK(store->SyncAll());
  constexpr int kLoads = 8;
  for (int round = 0; round < 300; ++round) {
    store->files().DropCached(file);
    while (store->Hot().used > 0) store->CountHot();  // the thread that has loaded the last chunk lets go of it
    std::barrier start(kLoads);
    const auto map = [&] {
      start.arrive_and_wait();
      return store->files().LeaseMap(file, 0, kEnd);
    };
    std::vector<decltype(std::async(std::launch::async, map))> loads;
    for (int i = 0; i < kLoads; ++i) loads.push_back(std::async(std::launch::async, map));
    std::vector<decltype(map())> maps;
    for (auto& load : loads) maps.push_back(load.get());
    for (const auto& result : maps) {
      ASSERT_OK(result);
      ASSERT_EQ(result->content, maps[0]->content);
    }
  }
}

// A file of a published directory, which passthrough serves.
void HotFilesTest::Publish(const std::string& data) {
  ASSERT_OK(store_->names().Create(kRootInode, "published", {.mode = S_IFDIR | 0755}));
  const InodePtr file = Make("published/a", data);
  store_->CloseFile(file);
  const Credentials root{.uid = 0, .capabilities = uint64_t{1} << CAP_FOWNER};
  Namespace::PublishCall publish(Must(store_.Resolve("published")), root, std::nullopt);
  auto published = store_->PublishTree(&publish);
  while (!published && published.error().code == ErrorCode::kAgain) published = store_->PublishTree(&publish);
  ASSERT_OK(published);
  store_->UsePassthrough(true);
}

TEST_F(HotFilesTest, APassThatTheKernelRefusedCountsNoMore) {
  Publish(Pattern(3, 4 * kMiB));
  const InodePtr file = Must(store_->OpenFile(Must(store_.Resolve("published/a")), false));
  FileIo& files = store_->files();
  EXPECT_FALSE(Must(files.Pass(file)).memory) << "it is not loaded";
  const Mapping mapped = MustMap(file);
  EXPECT_FALSE(files.IsPassed(*file)) << "only a program has it";
  const PassedMemory accepted = Must(files.Pass(file)), refused = Must(files.Pass(file));
  ASSERT_TRUE(accepted.memory && refused.memory);
  files.PassRefused(refused);
  EXPECT_TRUE(files.IsPassed(*file)) << "another one was accepted";
  files.PassRefused(accepted);
  EXPECT_FALSE(files.IsPassed(*file));
  store_->CloseFile(file);
}

TEST_F(HotFilesTest, ReadsTakeNoMoreMemoryWhileProgramsHaveTouchedMoreThanTheLimit) {
  Publish(Pattern(3, 4 * kMiB));
  const Mapping one = MustMap(Make("one", Pattern(1, 12 * kMiB)), 0, 10);
  const Mapping other = MustMap(Make("other", Pattern(2, 12 * kMiB)), 0, 10);
  for (const Mapping* each : {&one, &other}) {
    EXPECT_EQ(each->bytes().substr(2 * kMiB).find_first_not_of('\0'), std::string_view::npos);
  }
  store_->CountHot();
  EXPECT_EQ(store_->Hot().used, 24 * kMiB);
  EXPECT_TRUE(Must(store_.ReadPath("published/a")) == Pattern(3, 4 * kMiB));
  EXPECT_EQ(store_->Hot().used, 24 * kMiB);
}

TEST_F(HotFilesTest, AReadOfAHeaderMakesNone) {
  const std::string data = Pattern(3, 4 * kMiB);
  Publish(data);
  const InodePtr file = Must(store_->OpenFile(Must(store_.Resolve("published/a")), false));
  EXPECT_EQ(Must(store_.ReadAt(file, 0, 8)), data.substr(0, 8));
  EXPECT_EQ(Must(store_.ReadAt(file, 4 * kMiB - 8, 8)), data.substr(4 * kMiB - 8));
  EXPECT_EQ(store_->Hot().used, 0U);
  ReadStream stream;
  for (uint64_t at = 0; at < data.size(); at += kMiB) {
    std::promise<std::string> read;
    store_->files().Read(file, ByteOffset{at}, ByteCount{kMiB}, &stream, [&](const Result<ReadView>& view) {
      read.set_value(view ? ToText(*view) : "unreadable");
    });
    EXPECT_TRUE(read.get_future().get() == data.substr(at, kMiB)) << at;
  }
  EXPECT_EQ(store_->Hot().used, 4 * kMiB);
  EXPECT_TRUE(Must(store_->files().Pass(file)).memory) << "all of it is hot";
  store_->CloseFile(file);
}

TEST_F(HotFilesTest, StayWhenTheirInodeLeavesMemory) {
  TestStoreOptions options = WithHot(16 * kMiB);
  options.store.resident_inodes = 4;
  TestStore store(options);
  ASSERT_OK(store.WriteFile("a", Pattern(1, 4 * kMiB)));
  const auto load = [&] {
    const InodePtr file = store->OpenFile(store.Resolve("a").value(), false).value();
    const Mapping mapped(Must(store->files().LeaseMap(file, 0, kEnd)));
    EXPECT_TRUE(mapped.bytes() == Pattern(1, 4 * kMiB));
    store->CloseFile(file);
  };
  load();
  for (int i = 0; i < 20; ++i) ASSERT_OK(store.WriteFile(std::to_string(i), "other"));
  ASSERT_OK(store->SyncAll());
  const uint64_t before = store->Hot().loaded;
  load();
  EXPECT_EQ(store->Hot().loaded, before);
  EXPECT_EQ(store->Hot().used, 4 * kMiB);
}

TEST_F(HotFilesTest, DamageIsForgottenWhenItIsOver) {
  const std::string data = Pattern(6, 6 * kMiB);
  const InodePtr file = Make("a", data);
  ASSERT_OK(store_->SyncAll());
  EXPECT_TRUE(MustMap(file, 0, 2 * kMiB).bytes().substr(0, 2 * kMiB) == data.substr(0, 2 * kMiB));
  const uint64_t before = store_->Hot().loaded;
  Corrupt(file, 600);
  EXPECT_EQ(Map(file, 2 * kMiB, 2 * kMiB).error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(MustMap(file, 0, 2 * kMiB).bytes().substr(0, 2 * kMiB) == data.substr(0, 2 * kMiB));
  EXPECT_EQ(store_->Hot().loaded, before + 2 * kMiB) << "the good part was loaded again";
  Corrupt(file, 600);
  auto whole = Map(file);
  for (int i = 0; i < 10'000 && !whole; ++i) {  // until the thread that has met the damage lets go of the chunk
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    whole = Map(file);
  }
  EXPECT_TRUE(Mapping(Must(std::move(whole))).bytes() == data);
}

TEST(HotFiles, AStoreWithoutVerificationHasNone) {
  TestStoreOptions options = WithHot(16 * kMiB);
  options.store.verify = false;
  TestStore store(options);
  const InodePtr file = store.Create("a").value();
  EXPECT_EQ(store->files().LeaseMap(file, 0, kEnd).error().code, ErrorCode::kNoMemory);
}

TEST_F(HotFilesTest, AFileThatDoesNotFitEvictsNothing) {
  const InodePtr small = Make("small", Pattern(1, 4 * kMiB)), large = Make("large", Pattern(2, 20 * kMiB));
  MustMap(small);
  EXPECT_EQ(Map(large, 100).error().code, ErrorCode::kNoMemory) << "a part that begins behind a header";
  EXPECT_EQ(Map(large).error().code, ErrorCode::kNoMemory);
  EXPECT_EQ(store_->Hot().evictions, 0U);
  EXPECT_EQ(store_->Hot().used, 4 * kMiB);
  const Mapping mapped = MustMap(Make("mapped", Pattern(3, 6 * kMiB)));
  EXPECT_EQ(Map(Make("other", Pattern(4, 12 * kMiB))).error().code, ErrorCode::kNoMemory);
  EXPECT_EQ(store_->Hot().evictions, 0U) << "for a file that does not fit beside what is mapped";
}

TEST_F(HotFilesTest, AMappedContentThatWasReplacedCounts) {
  const InodePtr file = Make("a", Pattern(1, 10 * kMiB)), other = Make("b", Pattern(2, 10 * kMiB));
  {
    const Mapping old = MustMap(file);
    ASSERT_OK(store_.WriteAt(file, 0, "new"));
    EXPECT_EQ(Map(other).error().code, ErrorCode::kNoMemory);
    EXPECT_EQ(store_->Hot().used, 10 * kMiB);
    EXPECT_TRUE(old.bytes() == Pattern(1, 10 * kMiB));
  }
  EXPECT_TRUE(MustMap(other).bytes() == Pattern(2, 10 * kMiB));
}

TEST(HotFiles, AnAnswerKeepsTheContentForTheNextCall) {
  TestStore store(WithHot(kMostMapped + 64 * kMiB));
  const InodePtr file = store.Create("a").value(), other = store.Create("b").value();
  ASSERT_OK(store->files().Truncate(file, kMostMapped + 32 * kMiB));
  ASSERT_OK(store->files().Truncate(other, 48 * kMiB));
  const auto first = store->files().LeaseMap(file, 0, kEnd);
  ASSERT_OK(first);
  EXPECT_EQ(first->end, kMostMapped);
  EXPECT_EQ(store->files().LeaseMap(other, 0, kEnd).error().code, ErrorCode::kNoMemory);
  const auto second = store->files().LeaseMap(file, first->end, kEnd);
  ASSERT_OK(second);
  EXPECT_EQ(second->content, first->content);
}

TEST_F(HotFilesTest, LeasesHaveTheMemoryOfWhatIsLoaded) {
  const std::string data = Pattern(13, 8 * kMiB + 123);
  const InodePtr file = Make("a", data);
  const auto lease = [&](uint64_t offset, uint64_t length) {
    return Must(store_->files().LeaseRead(file, offset, length, /*from_memory=*/true));
  };
  EXPECT_FALSE(lease(0, kEnd).memory);
  EXPECT_EQ(store_->files().LeaseLoaded(file, 0, kEnd).error().code, ErrorCode::kNoMemory);
  EXPECT_EQ(store_->Hot().loaded, 0U);
  MustMap(file, 3 * kMiB, 10);
  EXPECT_FALSE(lease(0, kEnd).memory) << "a part is loaded";
  EXPECT_FALSE(lease(3 * kMiB, 2 * kMiB).memory) << "a part is loaded";
  EXPECT_TRUE(lease(3 * kMiB, 100).memory);
  MustMap(file);
  const auto counts = [&] { return std::pair(store_->statistics().device_read_bytes, store_->Hot().loaded); };
  const auto before = counts();
  const ReadLease kept = lease(kMiB, kEnd);
  std::string read(data.size(), '\0');
  ASSERT_EQ(pread(kept.memory.get(), read.data(), read.size(), 0), static_cast<ssize_t>(data.size()));
  EXPECT_TRUE(read == data);
  EXPECT_TRUE(Mapping(Must(store_->files().LeaseLoaded(file, 0, kEnd))).bytes() == data);
  EXPECT_EQ(counts(), before);
  // As long as somebody has it, it counts, with its content.
  ASSERT_OK(store_.WriteAt(file, 2 * kMiB, "patch"));
  EXPECT_FALSE(lease(0, kEnd).memory) << "of an older content";
  EXPECT_EQ(Map(Make("b", Pattern(14, 8 * kMiB))).error().code, ErrorCode::kNoMemory);
  ASSERT_EQ(pread(kept.memory.get(), read.data(), read.size(), 0), static_cast<ssize_t>(data.size()));
  EXPECT_TRUE(read == data);
}

TEST_F(HotFilesTest, ManyLeaveDescriptorsForOtherThings) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  TestStore store(WithHot(kGiB));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  for (int i = 0; i < 100; ++i) {
    const InodePtr file = store.Create(std::to_string(i)).value();
    ASSERT_OK(store.WriteAt(file, 0, Pattern(i, 100)));
    EXPECT_EQ(Mapping(Must(store->files().LeaseMap(file, 0, kEnd))).bytes(), Pattern(i, 100));
  }
  EXPECT_EQ(store->Hot().used, 32 * kChunkBytes);
}

TEST_F(HotFilesTest, AMappingOutlivesTheStore) {
  std::optional<Mapping> mapping;
  {
    TestStore store(WithHot(8 * kMiB));
    const InodePtr file = store.Create("a").value();
    ASSERT_OK(store.WriteAt(file, 0, Pattern(12, 3 * kMiB)));
    const auto lease = store->files().LeaseMap(file, 0, kEnd);
    ASSERT_OK(lease);
    mapping.emplace(*lease);
  }
  EXPECT_TRUE(mapping->bytes() == Pattern(12, 3 * kMiB));
}

TEST(HotFiles, AStoreWithoutMemoryForThemHasNone) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  EXPECT_EQ(store->files().LeaseMap(file, 0, kEnd).error().code, ErrorCode::kNoMemory);
}

}  // namespace
}  // namespace weightfs
