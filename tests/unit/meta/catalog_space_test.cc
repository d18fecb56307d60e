// SPDX-License-Identifier: Apache-2.0
// The space of a catalog, on a small filesystem of its own.
#include "meta/catalog_space.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "meta/keys.h"
#include "meta/rocks_kv_store.h"
#include "tests/support/result_asserts.h"
#include "tests/support/temporary_directory.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

std::atomic<bool> no_fallocate = false;  // fallocate(2) fails as on a filesystem without it
std::atomic<bool> full_for_compactions = false;
std::atomic<bool> full_for_options = false;

// A tmpfs of 64 MiB.
class CatalogSpaceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0 || mount("none", path().c_str(), "tmpfs", 0, "size=64m") != 0) {
      GTEST_SKIP() << "needs root, to mount a small filesystem";
    }
    mounted_ = true;
  }
  void TearDown() override {
    no_fallocate = full_for_compactions = full_for_options = false;
    if (mounted_) umount2(path().c_str(), MNT_DETACH);
  }

  const fs::path& path() const { return temporary_.path(); }
  uint64_t FreeBytes() const {
    struct statvfs space = {};
    EXPECT_EQ(statvfs(path().c_str(), &space), 0);
    return uint64_t{space.f_bfree} * space.f_frsize;
  }
  // Uses all free space of the filesystem except `rest`, as another program would.
  void Fill(uint64_t rest = 0) {
    const int file = open((path() / "filler").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(file, 0);
    const uint64_t free = FreeBytes();
    if (free > rest) {
      ASSERT_EQ(posix_fallocate(file, 0, static_cast<off_t>(free - rest)), 0);
    }
    close(file);
  }
  void Unfill() { fs::remove(path() / "filler"); }

  std::unique_ptr<RocksKvStore> Open(bool create = false) {
    auto store = RocksKvStore::Open((path() / "meta").string(), {.create = create, .awaits_space = true});
    EXPECT_TRUE(store.has_value()) << ToString(store.error());
    return store.has_value() ? std::move(*store) : nullptr;
  }
  static std::string Key(uint64_t number) { return keys::Extent(InodeId{1}, FileBlock{number}); }
  static KvBatch Batch(uint64_t number, size_t count = 1, size_t size = 1000) {
    KvBatch batch;
    for (uint64_t key = number; key < number + count; ++key) batch.Put(Key(key), std::string(size, 'x'));
    return batch;
  }
  static Result<void> Put(KvStore& store, uint64_t number) {
    RETURN_IF_ERROR(store.CheckSpace(KvChange::kGrow));
    return store.Write(Batch(number));
  }
  // Puts records until there is no space, and returns their number.
  static uint64_t PutUntilFull(KvStore& store) {
    for (uint64_t number = 0; number < 1'000'000; ++number) {
      if (const auto put = Put(store, number); !put) {
        EXPECT_EQ(put.error().code, ErrorCode::kNoSpace);
        return number;
      }
    }
    ADD_FAILURE() << "the filesystem never became full";
    return 0;
  }
  static void RemoveAll(KvStore& store, uint64_t count) {
    for (uint64_t number = 0; number < count; ++number) {
      ASSERT_OK(store.CheckSpace(KvChange::kRemove));
      KvBatch batch;
      batch.Delete(Key(number));
      ASSERT_OK(store.Write(std::move(batch)));
    }
  }
  static void PutWhenThereIsSpace(KvStore& store, uint64_t number) {
    while (!Put(store, number)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  TemporaryDirectory temporary_;
  bool mounted_ = false;
};

TEST_F(CatalogSpaceTest, GrowingLeavesTheSpaceThatDeletingNeeds) {
  const auto store = Open(true);
  const uint64_t count = PutUntilFull(*store);
  EXPECT_GT(count, 10'000U) << "of 1000 bytes each, in 64 MiB";
  EXPECT_EQ(store->FreeSpace(), 0U);
  EXPECT_TRUE(store->CheckSpace(KvChange::kUpdate).has_value());
  EXPECT_TRUE(store->CheckSpace(KvChange::kRemove).has_value());
  EXPECT_GE(FreeBytes(), CatalogSpace::kLeastNeed);
  EXPECT_FALSE(store->failed());
}

TEST_F(CatalogSpaceTest, EverythingCanBeRemovedAndWrittenAgain) {
  const auto store = Open(true);
  for (int round = 0; round < 3; ++round) {
    const uint64_t count = PutUntilFull(*store);
    EXPECT_GT(count, 10'000U) << round;
    RemoveAll(*store, count);
    PutWhenThereIsSpace(*store, 0);
    ASSERT_OK(store->Sync());
  }
  EXPECT_FALSE(store->failed());
}

TEST_F(CatalogSpaceTest, WhileOthersFillTheFilesystemOnlyGrowingIsRefused) {
  const auto store = Open(true);
  const uint64_t count = PutUntilFull(*store);
  Fill();
  EXPECT_EQ(Put(*store, count).error().code, ErrorCode::kNoSpace);
  for (int change = 0; change < 40; ++change) ASSERT_OK(store->Write(Batch(0, 1000)));  // more than two memtables
  EXPECT_EQ(store->Sync().error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(store->CheckSpace(KvChange::kUpdate).error().code, ErrorCode::kNoSpace) << "too much is in memory";
  RemoveAll(*store, count);
  EXPECT_EQ(store->NewIterator(keys::ExtentPrefix(InodeId{1}))->Valid(), false);
  EXPECT_EQ(Put(*store, 0).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(store->Sync().error().code, ErrorCode::kNoSpace);

  Unfill();
  PutWhenThereIsSpace(*store, 0);
  ASSERT_OK(store->Sync());
  EXPECT_FALSE(store->failed());
  EXPECT_GT(store->FreeSpace(), 0U);
}

TEST_F(CatalogSpaceTest, AFullFilesystemStopsAFlushThatHasBegun) {
  const auto store = Open(true);
  ASSERT_OK(store->Write(Batch(0, 10'000)));
  Fill(2 * kMiB);
  EXPECT_EQ(store->Sync().error().code, ErrorCode::kNoSpace);
  Unfill();
  Result<void> synced;
  while (!(synced = store->Sync())) ASSERT_EQ(synced.error().code, ErrorCode::kNoSpace);
  EXPECT_FALSE(store->failed());
}

TEST_F(CatalogSpaceTest, ACatalogThatCannotBeStoredIsClosedAndIsBehind) {
  auto store = Open(true);
  ASSERT_OK(Put(*store, 0));
  ASSERT_OK(store->Sync());
  Fill();
  ASSERT_OK(store->Write(Batch(1)));
  EXPECT_EQ(store->Sync().error().code, ErrorCode::kNoSpace);
  store.reset();
  Unfill();
  store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(store->Get(Key(0)).value().has_value());
  EXPECT_FALSE(store->Get(Key(1)).value().has_value());
}

TEST_F(CatalogSpaceTest, ALargeChangeAsksForItsSpace) {
  const auto store = Open(true);
  Fill(24 * kMiB);
  ASSERT_OK(store->CheckSpace(KvChange::kGrow));
  EXPECT_EQ(store->ClaimSpace(ByteCount{10 * kMiB}).error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(store->ClaimSpace(ByteCount{2 * kMiB}).has_value());
}

TEST_F(CatalogSpaceTest, TwoLargeChangesDoNotGetTheSameSpace) {
  const auto store = Open(true);
  Fill(24 * kMiB);
  for (int round = 0; round < 2; ++round) {
    const auto first = store->ClaimSpace(ByteCount{3 * kMiB});
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(store->ClaimSpace(ByteCount{3 * kMiB}).error().code, ErrorCode::kNoSpace);
    ASSERT_OK(store->CheckSpace(KvChange::kGrow));
  }
}

// What was accepted once, like the data of a write, is in the log and in memory.
TEST_F(CatalogSpaceTest, ALargeBatchIsNeverRefused) {
  const auto store = Open(true);
  Fill();
  EXPECT_FALSE(store->ClaimSpace(ByteCount{1}));  // measures
  ASSERT_OK(store->Write(Batch(0, 20'000)));
  EXPECT_FALSE(store->failed());
  EXPECT_TRUE(store->Get(Key(0)).value().has_value());
}

// Many small tables, which compactions would merge.
TEST_F(CatalogSpaceTest, CompactionsThatWaitForSpaceDelayNoDeletion) {
  const auto store = Open(true);
  full_for_compactions = true;
  const auto tables = [&] {
    const fs::directory_iterator entries(path() / "meta");
    return std::count_if(begin(entries), end(entries), [](const auto& e) { return e.path().extension() == ".sst"; });
  };
  for (uint64_t number = 0; tables() < 50; ++number) {
    ASSERT_OK(store->Write(Batch(0, number + 1, 10)));  // over the keys of the tables before
    const auto stored = store->Sync();
    ASSERT_TRUE(stored.has_value() || stored.error().code == ErrorCode::kNoSpace);
  }
  RemoveAll(*store, 50);
  full_for_compactions = false;
  PutWhenThereIsSpace(*store, 0);
  ASSERT_OK(store->Sync());
  EXPECT_FALSE(store->failed());
}

TEST_F(CatalogSpaceTest, ACompactionOfTheOpeningWaitsForSpace) {
  auto store = Open(true);
  full_for_compactions = true;
  for (uint64_t number = 0; number < 20; ++number) {
    ASSERT_OK(store->Write(Batch(0, number + 1, 10)));  // over the keys of the tables before
    static_cast<void>(store->Sync().has_value());
  }
  store.reset();
  store = Open();
  ASSERT_NE(store, nullptr);
  full_for_compactions = false;
  PutWhenThereIsSpace(*store, 0);
  ASSERT_OK(store->Sync());
  EXPECT_FALSE(store->failed());
}

// RocksDB writes its options last, and does without them.
TEST_F(CatalogSpaceTest, ACompactionWaitsAlsoIfTheOptionsHaveNoSpace) {
  auto store = Open(true);
  full_for_compactions = full_for_options = true;
  for (uint64_t number = 0; number < 20; ++number) {
    ASSERT_OK(store->Write(Batch(0, number + 1, 10)));  // over the keys of the tables before
    static_cast<void>(store->Sync().has_value());
  }
  for (int opening = 0; opening < 3; ++opening) {
    store.reset();
    store = Open();
    ASSERT_NE(store, nullptr);
    while (store->CheckSpace(KvChange::kGrow) && !store->failed()) std::this_thread::yield();
    EXPECT_FALSE(store->failed());
  }
}

TEST_F(CatalogSpaceTest, TheReserveOfAnOlderVersionIsRemoved) {
  auto store = Open(true);
  store.reset();
  std::ofstream(path() / "meta" / "reserve").put('x');
  store = Open();
  EXPECT_FALSE(fs::exists(path() / "meta" / "reserve"));
}

TEST_F(CatalogSpaceTest, WithoutFallocateFilesWaitForFreeSpaceToo) {
  no_fallocate = true;
  const auto store = Open(true);
  ASSERT_OK(Put(*store, 0));
  Fill();
  EXPECT_EQ(store->Sync().error().code, ErrorCode::kNoSpace);
  Unfill();
  Result<void> synced;
  while (!(synced = store->Sync())) ASSERT_EQ(synced.error().code, ErrorCode::kNoSpace);
  EXPECT_FALSE(store->failed());
}

TEST_F(CatalogSpaceTest, AClosedFileKeepsNoSpaceBeyondItsEnd) {
  auto store = Open(true);
  for (uint64_t number = 0; number < 100; ++number) ASSERT_OK(Put(*store, number));
  store.reset();
  Open().reset();
  for (const auto& entry : fs::directory_iterator(path() / "meta")) {
    struct stat status = {};
    ASSERT_EQ(stat(entry.path().c_str(), &status), 0);
    EXPECT_LE(uint64_t{512} * status.st_blocks, RoundUp(status.st_size, kBlockSize)) << entry.path();
  }
}

TEST(CatalogSpaceNeed, GrowsWithTheCatalogWithinLimits) {
  EXPECT_EQ(CatalogSpace::NeedOf(0), CatalogSpace::kLeastNeed);
  EXPECT_EQ(CatalogSpace::NeedOf(10 * kMiB), 20 * kMiB);
  EXPECT_EQ(CatalogSpace::NeedOf(kTiB), CatalogSpace::kLargestNeed);
}

}  // namespace
}  // namespace weightfs

// Replaces libc's function under the name that RocksDB uses. With 64-bit offsets, headers rename it to fallocate64.
extern "C" int Fallocate(int descriptor, int mode, off_t offset, off_t length) __asm__("fallocate");
extern "C" int Fallocate(int descriptor, int mode, off_t offset, off_t length) {
  if (weightfs::no_fallocate) {
    errno = EOPNOTSUPP;
    return -1;
  }
  char name[16] = {};  // RocksDB compacts on threads of this name
  if (weightfs::full_for_compactions && pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
      std::string_view(name).starts_with("rocksdb:low")) {
    errno = ENOSPC;
    return -1;
  }
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error);
  if (weightfs::full_for_options && path.filename().string().starts_with("OPTIONS")) {
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, descriptor, mode, offset, length));
}
