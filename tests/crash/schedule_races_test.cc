// SPDX-License-Identifier: Apache-2.0
// Races that the schedule simulation has found: two calls in many orders.
#include <gtest/gtest.h>

#include <thread>

#include "tests/crash/random_store.h"
#include "tests/schedule/scheduler.h"

namespace weightfs {
namespace {

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

}  // namespace
}  // namespace weightfs
