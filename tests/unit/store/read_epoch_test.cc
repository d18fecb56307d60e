// SPDX-License-Identifier: Apache-2.0
// Freed blocks and readers: a device read that is in progress keeps the blocks that it reads from being reused.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <string>

#include "tests/support/result_asserts.h"
#include "tests/support/test_store.h"
#include "tests/support/thread_state.h"

namespace weightfs {
namespace {

constexpr uint64_t kOldSize = 8 * kMiB;
constexpr uint64_t kWanted = 4 * kMiB / kBlockSize, kTooMuch = 60 * kMiB / kBlockSize;
constexpr std::chrono::hours kForever{1};

// Fills the free space with other content, in files of 1 MiB, until a write finds no space.
void FillPool(TestStore& store) {
  for (uint64_t number = 0;; ++number) {
    const InodePtr file = store.Create("filler" + std::to_string(number)).value();
    const bool full = !store.WriteAt(file, 0, Pattern(1000 + number, kMiB));
    ASSERT_OK(store->Sync(file));
    store->CloseFile(file);
    if (full) return;
  }
}

// Starts a read of `size` bytes at `offset` whose device reads are held back. Meanwhile `release` frees the blocks of
// the file, and the pool is filled. The read must then return the bytes from before.
void ExpectOldContent(TestStore& store, const InodePtr& file, uint64_t offset, uint64_t size,
                      const std::function<void()>& release) {
  const std::string old = Pattern(1, kOldSize);
  ASSERT_OK(store.WriteAt(file, 0, old));
  ASSERT_OK(store->Sync(file));
  store->files().DropCached(file);
  store.device().HoldReads();
  std::promise<Result<std::string>> promise;
  store->files().Read(file, ByteOffset{offset}, ByteCount{size}, nullptr, [&](const Result<ReadView>& view) {
    promise.set_value(view ? Result<std::string>(ToText(*view)) : view.error());
  });
  store.device().WaitForHeld(1);
  release();
  ASSERT_OK(store->SyncAll());
  ASSERT_NO_FATAL_FAILURE(FillPool(store));
  store.device().Release();
  const auto read = promise.get_future().get();
  ASSERT_OK(read);
  EXPECT_TRUE(*read == old.substr(offset, size));
  EXPECT_EQ(store->statistics().checksum_errors, 0U);
}

// Space that only reads in progress hold back is waited for.
TEST(ReadEpoch, AWriteToAFullPoolWaitsForTheReadsThatHoldFreedBlocks) {
  TestStoreOptions options;
  options.store.space_wait = kForever;
  TestStore store(options);
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(1, kOldSize)));
  ASSERT_OK(store->Sync(file));
  FillPool(store);
  store->files().DropCached(file);
  store.device().HoldReads();
  std::promise<Result<std::string>> promise;
  store->files().Read(file, ByteOffset{0}, ByteCount{kMiB}, nullptr, [&](const Result<ReadView>& view) {
    promise.set_value(view ? Result<std::string>(ToText(*view)) : view.error());
  });
  store.device().WaitForHeld(1);
  ASSERT_OK(store->files().Truncate(file, 0));
  EXPECT_EQ(store->files().Reserve(file, FileBlock{0}, BlockCount{kTooMuch}).error().code, ErrorCode::kNoSpace)
      << "without a wait, because it would not fit afterwards either";
  auto reserved = StartUntilBlocked([&] { return store->files().Reserve(file, FileBlock{0}, BlockCount{kWanted}); });
  std::vector<pid_t> committer;
  while (committer.empty()) committer = ThreadsNamed("weightfs-commit");  // it names itself
  WaitUntilBlocked(committer);                                            // it has nothing to do
  EXPECT_FALSE(HasEnded(reserved));
  store.device().Release();
  ASSERT_OK(reserved.get());
  EXPECT_TRUE(promise.get_future().get().value() == Pattern(1, kOldSize).substr(0, kMiB));
}

// The first offset is read as a chunk of the read-ahead cache, the second directly.
class ReadsInProgress : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ReadsInProgress, KeepTheBlocksThatAnOverwriteFrees) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ExpectOldContent(store, file, GetParam(), 256 * kKiB, [&] {
    ASSERT_OK(store.WriteAt(file, 0, Pattern(2, kOldSize)));
    ASSERT_OK(store->Sync(file));
  });
}

TEST_P(ReadsInProgress, KeepTheBlocksThatATruncationFrees) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ExpectOldContent(store, file, GetParam(), 256 * kKiB, [&] {
    ASSERT_OK(store->files().Truncate(file, 0));
    ASSERT_OK(store->Sync(file));
  });
}

TEST_P(ReadsInProgress, KeepTheBlocksThatADeletionFrees) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ExpectOldContent(store, file, GetParam(), 256 * kKiB, [&] {
    ASSERT_OK(store->names().Unlink(kRootInode, "a"));
    store->CloseFile(file);
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, ReadsInProgress, ::testing::Values(uint64_t{0}, 5 * kMiB));

}  // namespace
}  // namespace weightfs
