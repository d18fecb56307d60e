// SPDX-License-Identifier: Apache-2.0
// The reserve of a catalog, on a small filesystem of its own.
#include "meta/catalog_space.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "meta/keys.h"
#include "meta/reserve_file.h"
#include "meta/rocks_kv_store.h"
#include "tests/support/result_asserts.h"
#include "tests/support/temporary_directory.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

std::atomic<bool> no_fallocate = false;  // fallocate(2) fails as on a filesystem without it

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
    no_fallocate = false;
    if (mounted_) umount2(path().c_str(), MNT_DETACH);
  }

  const fs::path& path() const { return temporary_.path(); }
  fs::path reserve() const { return path() / "meta" / CatalogSpace::kReserveName; }
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
    auto store = RocksKvStore::Open((path() / "meta").string(), {.create = create});
    EXPECT_TRUE(store.has_value()) << ToString(store.error());
    return store.has_value() ? std::move(*store) : nullptr;
  }
  static std::string Key(uint64_t number) { return keys::Extent(InodeId{1}, FileBlock{number}); }
  static Result<void> Put(KvStore& store, uint64_t number, size_t size = 1000) {
    RETURN_IF_ERROR(store.CheckSpace(KvChange::kGrow));
    KvBatch batch;
    batch.Put(Key(number), std::string(size, 'x'));
    return store.Write(std::move(batch));
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
      if (number % 1000 == 0) ASSERT_OK(store.Sync());
    }
  }

  TemporaryDirectory temporary_;
  bool mounted_ = false;
};

TEST_F(CatalogSpaceTest, ARecordThatTheReserveCannotCoverIsRefused) {
  const auto store = Open(true);
  const uint64_t count = PutUntilFull(*store);
  EXPECT_GT(count, 10'000U) << "of 1000 bytes each, in 64 MiB";
  EXPECT_EQ(store->FreeSpace(), 0U);
  EXPECT_TRUE(store->CheckSpace(KvChange::kUpdate).has_value());
  EXPECT_TRUE(store->CheckSpace(KvChange::kRemove).has_value());
  EXPECT_GE(fs::file_size(reserve()), CatalogSpace::kLeastNeed);
  EXPECT_FALSE(store->failed());
}

TEST_F(CatalogSpaceTest, EverythingCanBeRemovedOnAFullFilesystemAndWrittenAgain) {
  const auto store = Open(true);
  for (int round = 0; round < 3; ++round) {
    const uint64_t count = PutUntilFull(*store);
    EXPECT_GT(count, 10'000U) << round;
    Fill();
    RemoveAll(*store, count);
    // Until the pause after the last compaction is over.
    while (!Put(*store, 0)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    Unfill();
  }
  EXPECT_FALSE(store->failed());
}

TEST_F(CatalogSpaceTest, ARunningStoreUsesItsReserveWhenOthersFillTheFilesystem) {
  auto store = Open(true);
  ASSERT_OK(Put(*store, 0));
  Fill();
  const uint64_t count = PutUntilFull(*store);
  EXPECT_GT(count, 100U) << "the surplus of the reserve";
  for (uint64_t number = 0; number < count; number += 10) {
    KvBatch batch;
    batch.Put(Key(number), "changed");
    ASSERT_OK(store->CheckSpace(KvChange::kUpdate));
    ASSERT_OK(store->Write(std::move(batch)));
  }
  ASSERT_OK(store->Sync());
  EXPECT_FALSE(store->failed());
  store.reset();
  EXPECT_LT(fs::file_size(reserve()), CatalogSpace::kLeastNeed + CatalogSpace::kSurplus);

  // It opens from its reserve too.
  store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->Get(Key(10)).value(), "changed");
  EXPECT_TRUE(store->CheckSpace(KvChange::kRemove).has_value());
  Unfill();
  EXPECT_TRUE(Put(*store, 1).has_value());
  EXPECT_GT(store->FreeSpace(), 0U);
  EXPECT_GE(fs::file_size(reserve()), CatalogSpace::kLeastNeed + CatalogSpace::kSurplus);
}

TEST_F(CatalogSpaceTest, AFullFilesystemWithoutAReserveRefusesEveryChangeAndLosesNothing) {
  auto store = Open(true);
  ASSERT_OK(Put(*store, 0));
  store.reset();
  fs::resize_file(reserve(), 0);
  Fill(2 * kMiB);
  store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->CheckSpace(KvChange::kGrow).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(store->CheckSpace(KvChange::kUpdate).error().code, ErrorCode::kNoSpace);
  EXPECT_FALSE(store->failed());
  EXPECT_TRUE(store->Get(Key(0)).value().has_value());
}

TEST_F(CatalogSpaceTest, AReserveWithHolesHoldsNothing) {
  fs::create_directory(path() / "meta");
  std::ofstream(reserve()).put('x');
  fs::resize_file(reserve(), 20 * kMiB);  // as a copy of the store may have it
  const auto directory = GuardedDirectory::Open((path() / "meta").string());
  ASSERT_OK(directory);
  const auto opened = ReserveFile::Open(*directory, CatalogSpace::kReserveName);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->size(), 0U);
}

TEST_F(CatalogSpaceTest, WithoutFallocateFreeSpaceIsKeptInPlaceOfTheReserve) {
  no_fallocate = true;
  auto store = Open(true);
  ASSERT_OK(Put(*store, 0));
  EXPECT_EQ(fs::file_size(reserve()), 0U);
  store.reset();
  Fill(CatalogSpace::kLeastNeed);
  store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->CheckSpace(KvChange::kGrow).error().code, ErrorCode::kNoSpace);
  ASSERT_OK(store->CheckSpace(KvChange::kRemove));
  KvBatch batch;
  batch.Delete(Key(0));
  ASSERT_OK(store->Write(std::move(batch)));
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

// Replaces libc's function.
extern "C" int fallocate(int descriptor, int mode, off_t offset, off_t length) {
  if (weightfs::no_fallocate) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, descriptor, mode, offset, length));
}
