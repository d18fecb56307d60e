// SPDX-License-Identifier: Apache-2.0
#include "fs/page_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>

namespace weightfs {
namespace {

constexpr InodeId kFile{5}, kOther{6};
constexpr bool kMappable = true;
using Pieces = std::vector<ByteRange>;

bool OpenCached(PageCacheTracker& tracker, InodeId ino) { return tracker.Open(ino, OpenMode::kPageCache, false).keep; }
void CloseCached(PageCacheTracker& tracker, InodeId ino) { tracker.Close(ino, OpenMode::kPageCache, false); }

// What a direct write through an open of its own asks.
bool WriteDirect(PageCacheTracker& tracker, InodeId ino) {
  const auto opened = tracker.Open(ino, OpenMode::kDirect, false);
  const bool stale = opened.pages->MayBeStaleAfterWrite();
  tracker.Close(ino, OpenMode::kDirect, false);
  return stale;
}

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

TEST(PageCacheTracker, DirectWriteBesideACachedOpenMustDropPages) {
  PageCacheTracker tracker;
  (void)OpenCached(tracker, kFile);
  (void)OpenCached(tracker, kFile);
  CloseCached(tracker, kFile);
  EXPECT_TRUE(WriteDirect(tracker, kFile));
  EXPECT_FALSE(WriteDirect(tracker, kOther));
  CloseCached(tracker, kFile);
  EXPECT_TRUE(OpenCached(tracker, kFile)) << "the stale pages were dropped, the rest is valid";
}

TEST(PageCacheTracker, ForgettingTakesNothingFromAnOpenFile) {
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
  pages->NoteFill();
  EXPECT_TRUE(WriteDirect(tracker, kFile));
  EXPECT_TRUE(WriteDirect(tracker, kFile));
  tracker.Close(kFile, OpenMode::kDirect, kMappable);
  EXPECT_FALSE(WriteDirect(tracker, kFile)) << "nobody can have a stale page mapped";
  EXPECT_EQ(tracker.Find(kFile), nullptr);
}

TEST(PageCacheTracker, OnlyAReadWriteOpenMayHoldChanges) {
  PageCacheTracker tracker;
  const auto pages = tracker.Open(kFile, OpenMode::kDirect, !kMappable).pages;
  pages->NoteFill();
  EXPECT_FALSE(pages->MayHoldChanges());
  EXPECT_FALSE(pages->MayHaveDirtyPages());
  (void)tracker.Open(kFile, OpenMode::kDirect, kMappable);
  EXPECT_TRUE(pages->MayHoldChanges());
  EXPECT_TRUE(pages->MayHaveDirtyPages());
  tracker.Close(kFile, OpenMode::kDirect, kMappable);
  EXPECT_FALSE(pages->MayHoldChanges());
}

TEST(InodePages, WriteBackLeavesOutAppliedDirectWrites) {
  InodePages pages;
  InodePages::DirectWrite middle(pages, {1024, 1032}), other(pages, {100, 200}), overlapping(pages, {150, 300});
  for (auto* write : {&middle, &other, &overlapping}) write->MarkApplied();
  {
    const InodePages::WriteBack page(pages, {0, 4096});
    EXPECT_EQ(page.pieces(), (Pieces{{0, 100}, {300, 1024}, {1032, 4096}}));
  }
  EXPECT_EQ(InodePages::WriteBack(pages, {100, 300}).pieces(), Pieces{}) << "nothing is left of it";
  EXPECT_EQ(InodePages::WriteBack(pages, {4096, 8192}).pieces(), (Pieces{{4096, 8192}}));
  middle.End();
  other.End();
  overlapping.End();
  EXPECT_EQ(InodePages::WriteBack(pages, {0, 4096}).pieces(), (Pieces{{0, 4096}}));
}

TEST(InodePages, FailedDirectWriteTakesNothingFromAWriteBack) {
  InodePages pages;
  { const InodePages::DirectWrite failed(pages, {0, 4096}); }
  EXPECT_EQ(InodePages::WriteBack(pages, {0, 4096}).pieces(), (Pieces{{0, 4096}}));
}

TEST(InodePages, WriteBackWaitsForADirectWriteThatTheStoreIsTaking) {
  InodePages pages;
  InodePages::DirectWrite write(pages, {8, 16});
  std::promise<void> started;
  auto pieces = std::async(std::launch::async, [&] {
    started.set_value();
    return InodePages::WriteBack(pages, {0, 4096}).pieces();
  });
  started.get_future().wait();
  EXPECT_EQ(InodePages::WriteBack(pages, {4096, 8192}).pieces().size(), 1U) << "another page waits for nothing";
  write.MarkApplied();
  EXPECT_EQ(pieces.get(), (Pieces{{0, 8}, {16, 4096}}));
}

TEST(InodePages, DirectWriteWaitsForAWriteBackThatTheStoreIsTaking) {
  InodePages pages;
  std::optional<InodePages::WriteBack> page(std::in_place, pages, ByteRange{0, 4096});
  std::atomic<bool> ended{false};
  auto begun = std::async(std::launch::async, [&] {
    const InodePages::DirectWrite write(pages, {8, 16});
    return ended.load();
  });
  ended = true;
  page->End();
  EXPECT_TRUE(begun.get());
}

TEST(InodePages, MovedDirectWriteEndsOnce) {
  InodePages pages;
  InodePages::DirectWrite write(pages, {0, 4096}), moved;
  write.MarkApplied();
  moved = std::move(write);
  EXPECT_TRUE(InodePages::WriteBack(pages, {0, 4096}).pieces().empty());
  moved.End();
  moved.End();
  EXPECT_FALSE(InodePages::WriteBack(pages, {0, 4096}).pieces().empty());
}

}  // namespace
}  // namespace weightfs
