// SPDX-License-Identifier: Apache-2.0
#include "fs/page_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>

#include "tests/support/thread_state.h"

namespace weightfs {
namespace {

constexpr InodeId kFile{5}, kOther{6};
constexpr bool kMappable = true;
using Ranges = std::vector<ByteRange>;

bool OpenCached(PageCacheTracker& tracker, InodeId ino) { return tracker.Open(ino, OpenMode::kPageCache, false).keep; }
void CloseCached(PageCacheTracker& tracker, InodeId ino) { tracker.Close(ino, OpenMode::kPageCache, false); }

// A direct write through a separate open. Returns true if the kernel must drop pages first.
bool WriteDirect(PageCacheTracker& tracker, InodeId ino) {
  const auto opened = tracker.Open(ino, OpenMode::kDirect, false);
  const bool drop = InodePages::DirectWrite(*opened.pages, {0, 8}).must_drop();
  tracker.Close(ino, OpenMode::kDirect, false);
  return drop;
}

// Page-cache fills, as the kernel requests them; `begun` of them are reading the store.
struct Fills {
  InodePages& pages;
  int begun = 0;

  bool Begin(ByteRange range) {
    const bool at_once = pages.BeginFill(range, [this] { ++begun; });
    if (at_once) ++begun;
    return at_once;
  }
};

Result<void> DropNothing(const ByteRange&) { return {}; }

TEST(PageCacheTracker, KeepsPagesFromOpenToOpen) {
  PageCacheTracker tracker;
  EXPECT_FALSE(OpenCached(tracker, kFile)) << "nothing is known of the kernel's pages";
  CloseCached(tracker, kFile);
  EXPECT_TRUE(OpenCached(tracker, kFile));
  EXPECT_FALSE(OpenCached(tracker, kOther));
}

TEST(PageCacheTracker, DirectWriteMakesTheNextCachedOpenDropPages) {
  PageCacheTracker tracker;
  (void)OpenCached(tracker, kFile);
  CloseCached(tracker, kFile);
  EXPECT_FALSE(WriteDirect(tracker, kFile)) << "no open reads the stale pages";
  EXPECT_FALSE(OpenCached(tracker, kFile));
}

TEST(PageCacheTracker, DirectWriteDuringACachedOpenMustDropPages) {
  PageCacheTracker tracker;
  (void)OpenCached(tracker, kFile);
  (void)OpenCached(tracker, kFile);
  CloseCached(tracker, kFile);
  EXPECT_TRUE(WriteDirect(tracker, kFile));
  EXPECT_FALSE(WriteDirect(tracker, kOther));
  CloseCached(tracker, kFile);
  EXPECT_TRUE(OpenCached(tracker, kFile)) << "the stale pages were dropped, the rest is valid";
}

TEST(PageCacheTracker, ForgettingDoesNotAffectAnOpenFile) {
  PageCacheTracker tracker;
  (void)OpenCached(tracker, kFile);
  tracker.Forget(kFile);
  EXPECT_TRUE(WriteDirect(tracker, kFile));
  CloseCached(tracker, kFile);
  tracker.Forget(kFile);
  EXPECT_FALSE(OpenCached(tracker, kFile));
}

TEST(PageCacheTracker, FillMakesLaterDirectWritesDropPagesUntilTheLastClose) {
  PageCacheTracker tracker;
  const auto pages = tracker.Open(kFile, OpenMode::kDirect, kMappable).pages;
  EXPECT_FALSE(WriteDirect(tracker, kFile)) << "no page was ever filled";
  EXPECT_TRUE(pages->BeginFill({0, 4096}, nullptr));
  EXPECT_TRUE(WriteDirect(tracker, kFile));
  EXPECT_TRUE(WriteDirect(tracker, kFile));
  tracker.Close(kFile, OpenMode::kDirect, kMappable);
  EXPECT_FALSE(WriteDirect(tracker, kFile)) << "nobody can have a stale page mapped";
  EXPECT_EQ(tracker.Find(kFile), nullptr);
}

TEST(PageCacheTracker, OnlyAReadWriteOpenMayHoldChanges) {
  PageCacheTracker tracker;
  const auto pages = tracker.Open(kFile, OpenMode::kDirect, !kMappable).pages;
  EXPECT_TRUE(pages->BeginFill({0, 4096}, nullptr));
  EXPECT_FALSE(pages->MayHoldChanges());
  EXPECT_FALSE(pages->MayHaveDirtyPages());
  (void)tracker.Open(kFile, OpenMode::kDirect, kMappable);
  EXPECT_TRUE(pages->MayHoldChanges());
  EXPECT_TRUE(pages->MayHaveDirtyPages());
  tracker.Close(kFile, OpenMode::kDirect, kMappable);
  EXPECT_FALSE(pages->MayHoldChanges());
}

TEST(PageCacheTracker, KeepsAnInodeWhileADirectWriteIsUnderWay) {
  PageCacheTracker tracker;
  const auto pages = tracker.Open(kFile, OpenMode::kDirect, kMappable).pages;
  InodePages::DirectWrite write(*pages, {0, 8});
  tracker.Close(kFile, OpenMode::kDirect, kMappable);
  tracker.Forget(kFile);
  EXPECT_EQ(tracker.Open(kFile, OpenMode::kDirect, kMappable).pages, pages);
  Fills fills{*pages};
  EXPECT_FALSE(fills.Begin({0, 4096})) << "a fill of the new open waits, too";
  write.End();
  tracker.Close(kFile, OpenMode::kDirect, kMappable);
  EXPECT_EQ(tracker.Find(kFile), nullptr);
}

TEST(InodePages, FillOfAPageWaitsForADirectWrite) {
  InodePages pages;
  Fills fills{pages};
  InodePages::DirectWrite write(pages, {1024, 1032});
  EXPECT_FALSE(write.must_drop());
  EXPECT_FALSE(fills.Begin({0, 4096}));
  EXPECT_TRUE(fills.Begin({4096, 8192})) << "another page waits for nothing";
  EXPECT_EQ(fills.begun, 1);
  write.End();
  EXPECT_EQ(fills.begun, 2);
  EXPECT_TRUE(fills.Begin({0, 4096}));
}

TEST(InodePages, FillWaitsForEachDirectWriteOfItsPages) {
  InodePages pages;
  Fills fills{pages};
  InodePages::DirectWrite first(pages, {0, 8}), second(pages, {8, 16});
  EXPECT_FALSE(fills.Begin({0, 4096}));
  first.End();
  EXPECT_EQ(fills.begun, 0);
  second.End();
  EXPECT_EQ(fills.begun, 1);
}

TEST(InodePages, PagesThatMayBeThereAreDroppedBeforeTheWrite) {
  InodePages pages;
  Fills fills{pages};
  EXPECT_TRUE(InodePages::DirectWrite(pages, {0, 8}, InodePages::DropPolicy::kAlways).must_drop());
  ASSERT_TRUE(fills.Begin({0, 4096}));
  InodePages::DirectWrite write(pages, {8, 16});
  ASSERT_TRUE(write.must_drop());
  EXPECT_TRUE(fills.Begin({0, 4096})) << "the drop has not begun";
  Ranges dropped;
  ASSERT_TRUE(write
                  .DropPages([&](const ByteRange& range) -> Result<void> {
                    dropped.push_back(range);
                    return {};
                  })
                  .has_value());
  EXPECT_EQ(dropped, (Ranges{{8, 16}}));
  EXPECT_FALSE(write.must_drop());
  EXPECT_FALSE(fills.Begin({0, 4096}));
  write.End();
  EXPECT_EQ(fills.begun, 3);
}

// The kernel's drop waits for the answers of fills under way, so these must not wait for the drop.
TEST(InodePages, FillDuringADropIsAnsweredAndItsPagesAreDroppedAgain) {
  InodePages pages;
  Fills fills{pages};
  constexpr ByteRange kRange{100, 8200}, kFirst{0, 4096}, kSecond{4096, 8192}, kOutside{12288, 16384};
  InodePages::DirectWrite write(pages, kRange, InodePages::DropPolicy::kAlways);
  Ranges dropped;
  const auto drop = [&](const ByteRange& range) -> Result<void> {
    dropped.push_back(range);
    switch (dropped.size()) {
      case 1:
        for (const ByteRange& fill : {kFirst, kSecond, kFirst, kOutside}) EXPECT_TRUE(fills.Begin(fill));
        break;
      case 2: EXPECT_TRUE(fills.Begin(kFirst)) << "it is being dropped"; break;
      case 3: EXPECT_TRUE(fills.Begin(kFirst)) << "it is going to be dropped"; break;
      case 4: EXPECT_FALSE(fills.Begin(kSecond)) << "the kernel has dropped it and would not ask if it had it"; break;
    }
    return {};
  };
  ASSERT_TRUE(write.DropPages(drop).has_value());
  EXPECT_EQ(dropped, (Ranges{kRange, kFirst, kSecond, kFirst}));
  EXPECT_EQ(fills.begun, 6);
  EXPECT_FALSE(fills.Begin(kFirst));
  write.End();
  EXPECT_EQ(fills.begun, 8);
}

TEST(InodePages, FailedDropEndsTheDirectWrite) {
  InodePages pages;
  Fills fills{pages};
  InodePages::DirectWrite write(pages, {0, 8192}, InodePages::DropPolicy::kAlways);
  int drops = 0;
  const auto drop = [&](const ByteRange&) -> Result<void> {
    if (++drops == 1) {
      EXPECT_TRUE(fills.Begin({0, 4096}));
      return {};
    }
    EXPECT_FALSE(fills.Begin({4096, 8192}));
    return ErrorCode::kIo;
  };
  EXPECT_EQ(write.DropPages(drop).error().code, ErrorCode::kIo);
  EXPECT_EQ(fills.begun, 2) << "the fill that waited";
  EXPECT_TRUE(fills.Begin({0, 4096}));
  InodePages::DirectWrite next(pages, {0, 8});
  EXPECT_TRUE(next.DropPages(DropNothing).has_value()) << "the next drop has its turn";
}

// Otherwise the second one would wait for a fill that the first one blocks, and vice versa.
TEST(InodePages, DropsOfOneInodeTakeTurns) {
  InodePages pages;
  constexpr auto kAlways = InodePages::DropPolicy::kAlways;
  std::future<bool> second;
  std::atomic<bool> first_ended{false};
  InodePages::DirectWrite write(pages, {0, 8}, kAlways);
  const auto drop = [&](const ByteRange&) -> Result<void> {
    second = StartUntilBlocked([&] {
      InodePages::DirectWrite other(pages, {0, 8}, kAlways);
      bool in_turn = false;
      (void)other.DropPages([&](const ByteRange&) -> Result<void> {
        in_turn = first_ended;
        return {};
      });
      return in_turn;
    });
    first_ended = true;
    return {};
  };
  ASSERT_TRUE(write.DropPages(drop).has_value());
  EXPECT_TRUE(second.get());
}

TEST(InodePages, MovedDirectWriteEndsOnce) {
  InodePages pages;
  Fills fills{pages};
  InodePages::DirectWrite write(pages, {0, 4096}), moved;
  EXPECT_FALSE(fills.Begin({0, 4096}));
  moved = std::move(write);
  write.End();
  EXPECT_EQ(fills.begun, 0);
  moved.End();
  moved.End();
  EXPECT_EQ(fills.begun, 1);
}

TEST(PageCacheTracker, TheFirstOpenDecidesForAllWhetherTheDaemonIsPassed) {
  // Only the addresses count; the tracker calls nothing of a backing.
  const auto fake = [](int* place) {
    return std::shared_ptr<Backing>(std::shared_ptr<void>(), reinterpret_cast<Backing*>(place));
  };
  int one = 0, two = 0;
  PageCacheTracker tracker;
  EXPECT_EQ(tracker.Open(kFile, OpenMode::kHot, false).backing, nullptr);
  EXPECT_EQ(tracker.Open(kFile, OpenMode::kDirect, false, fake(&one)).backing, nullptr);
  tracker.Close(kFile, OpenMode::kHot, false);
  EXPECT_EQ(tracker.Open(kFile, OpenMode::kDirect, false, fake(&one)).backing, nullptr);
  tracker.Close(kFile, OpenMode::kDirect, false);
  tracker.Close(kFile, OpenMode::kDirect, false);
  EXPECT_EQ(tracker.Open(kFile, OpenMode::kPageCache, false, fake(&one)).backing, fake(&one));
  EXPECT_EQ(tracker.Open(kFile, OpenMode::kDirect, false, fake(&two)).backing, fake(&one));
  EXPECT_EQ(tracker.Open(kFile, OpenMode::kDirect, false).backing, fake(&one));
  EXPECT_FALSE(tracker.Find(kFile)->MayHaveDirtyPages());
  for (int i = 0; i < 3; ++i) tracker.Close(kFile, OpenMode::kPassthrough, false);
  EXPECT_EQ(tracker.Open(kFile, OpenMode::kDirect, false).backing, nullptr);
}

}  // namespace
}  // namespace weightfs
