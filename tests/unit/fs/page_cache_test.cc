#include "fs/page_cache.h"

#include <gtest/gtest.h>

namespace weightfs {
namespace {

constexpr InodeId kFile{5}, kOther{6};

TEST(PageCacheTracker, KeepsPagesFromOpenToOpen) {
  PageCacheTracker tracker;
  EXPECT_FALSE(tracker.Open(kFile)) << "nothing is known of what the kernel has";
  tracker.Close(kFile);
  EXPECT_TRUE(tracker.Open(kFile));
  EXPECT_FALSE(tracker.Open(kOther));
}

TEST(PageCacheTracker, WritePastTheCacheMakesTheNextOpenDropPages) {
  PageCacheTracker tracker;
  (void)tracker.Open(kFile);
  tracker.Close(kFile);
  EXPECT_FALSE(tracker.ChangedPastCache(kFile)) << "no open to tell";
  EXPECT_FALSE(tracker.Open(kFile));
}

TEST(PageCacheTracker, WritePastTheCacheOfAnOpenFileMustInvalidate) {
  PageCacheTracker tracker;
  (void)tracker.Open(kFile);
  (void)tracker.Open(kFile);
  tracker.Close(kFile);
  EXPECT_TRUE(tracker.ChangedPastCache(kFile));
  EXPECT_FALSE(tracker.ChangedPastCache(kOther));
  tracker.Close(kFile);
  EXPECT_TRUE(tracker.Open(kFile)) << "the pages were invalidated, so what came after is good";
}

TEST(PageCacheTracker, ForgettingTakesNothingFromAnOpenFile) {
  PageCacheTracker tracker;
  (void)tracker.Open(kFile);
  tracker.Forget(kFile);
  EXPECT_TRUE(tracker.ChangedPastCache(kFile));
  tracker.Close(kFile);
  tracker.Forget(kFile);
  EXPECT_FALSE(tracker.Open(kFile));
}

}  // namespace
}  // namespace weightfs
