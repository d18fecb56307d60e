// SPDX-License-Identifier: Apache-2.0
// Races that the schedule simulation has found: two calls in many orders.
#include <gtest/gtest.h>

#include <thread>

#include "common/log.h"
#include "tests/crash/random_store.h"
#include "tests/schedule/scheduler.h"

namespace weightfs {
namespace {

// Without texts, whose memory would be that of the run.
Result<void> CodeOf(const Result<void>& result) { return result ? Result<void>() : result.error().code; }

// Each seed is another order of the two.
TEST(ScheduleRaces, AKnownFileCanBeOpenedDuringItsUnlink) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Result<void> opened, seen, unlinked;
    schedule::RunSeed(seed, [&] {
      TestStore store(RandomStoreOptions(seed));
      const bool written = store.WriteFile("a", "text").has_value() && store->SyncAll().has_value();
      const InodeId ino = written ? store.Resolve("a").value() : InodeId{0};
      store->inodes().AddLookups(ino, 1);
      std::thread other([&] {
        const auto attributes = store->names().GetAttributes(ino);
        if (!attributes) seen = attributes.error().code;
        const auto inode = store->OpenFile(ino, false);
        if (!inode) opened = inode.error().code;
        if (inode) store->CloseFile(*inode);
      });
      unlinked = store->names().Unlink(kRootInode, "a");
      other.join();
      store->names().Forget(ino, 1);
    });
    ASSERT_TRUE(unlinked.has_value()) << "seed " << seed;
    ASSERT_TRUE(seen.has_value()) << "seed " << seed << ": " << ToString(seen.error());
    ASSERT_TRUE(opened.has_value()) << "seed " << seed << ": " << ToString(opened.error());
  }
}

// The truncation reads the block of which the write replaces a part.
TEST(ScheduleRaces, ATruncationReadsNoBlockThatIsBeingWritten) {
  spdlog::set_level(spdlog::level::off);  // a message would keep memory of the run
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Result<void> written, truncated;
    uint64_t checksum_errors = 0;
    schedule::RunSeed(seed, [&] {
      TestStore store(RandomStoreOptions(seed));
      if (!store.WriteFile("a", Pattern(seed, 4 * kBlockSize)) || !store->SyncAll()) return;
      const InodePtr inode = store.OpenPath("a").value();
      std::thread other([&] {
        written = CodeOf(store.WriteAt(inode, 3 * kBlockSize, Pattern(seed + 1, kBlockSize / 2)));
        if (written) written = CodeOf(store->Sync(inode));
      });
      truncated = CodeOf(store->files().Truncate(inode, 3 * kBlockSize + kBlockSize / 2));
      other.join();
      store->CloseFile(inode);
      checksum_errors = store->statistics().checksum_errors;
    });
    ASSERT_TRUE(written.has_value()) << "seed " << seed << ": " << ToString(written.error());
    ASSERT_TRUE(truncated.has_value()) << "seed " << seed << ": " << ToString(truncated.error());
    ASSERT_EQ(checksum_errors, 0U) << "seed " << seed;
  }
}

}  // namespace
}  // namespace weightfs
