// SPDX-License-Identifier: Apache-2.0
#include "fs/close_tracker.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace weightfs {
namespace {

constexpr uint64_t kOpener = 100, kChild = 101, kUmount = 102;       // processes
constexpr uint64_t kOfOpener = 1, kOfChild = 2, kOfUmount = 3;       // owners of their descriptors
const CloseTracker::Clock::time_point kNow(std::chrono::seconds(50));
constexpr auto kTick = std::chrono::nanoseconds(1);

TEST(CloseTracker, TheWriterClosesIt) {
  CloseTracker handle;
  handle.Opened(kOpener);
  EXPECT_FALSE(handle.IsClosed(kNow));
  handle.Changed(kOfOpener);
  handle.Closed(kOfOpener, kOpener, kNow);
  EXPECT_TRUE(handle.IsClosed(kNow));
  EXPECT_TRUE(handle.IsClosed(kNow - kTick));
}

TEST(CloseTracker, ACloseThatNoReleaseFollowsWasOfACopy) {
  CloseTracker handle;
  handle.Opened(kOpener);
  handle.Changed(kOfOpener);
  handle.Closed(kOfOpener, kOpener, kNow);
  EXPECT_FALSE(handle.IsClosed(kNow + kTick));
  handle.Closed(kOfUmount, kUmount, kNow + kTick);
  EXPECT_FALSE(handle.IsClosed(kNow + kTick)) << "a child says nothing about it";
  handle.Closed(kOfOpener, kOpener, kNow + kTick);
  EXPECT_TRUE(handle.IsClosed(kNow + kTick));
}

TEST(CloseTracker, AWriteAfterACloseOpensItAgain) {
  for (const uint64_t owner : {kOfOpener, kOfChild, uint64_t{0}}) {
    CloseTracker handle;
    handle.Opened(kOpener);
    handle.Changed(kOfOpener);
    handle.Closed(kOfOpener, kOpener, kNow);
    EXPECT_TRUE(handle.Changed(owner)) << owner;
    EXPECT_FALSE(handle.IsClosed(kNow)) << owner;
    EXPECT_FALSE(handle.Changed(owner)) << owner;
  }
}

TEST(CloseTracker, AChildThatWroteLastLeavesItToTheParent) {
  CloseTracker handle;
  handle.Opened(kOpener);
  handle.Changed(kOfOpener);
  handle.Changed(kOfChild);
  handle.Closed(kOfChild, kChild, kNow);
  EXPECT_FALSE(handle.IsClosed(kNow));
  handle.Closed(kOfOpener, kOpener, kNow);
  EXPECT_TRUE(handle.IsClosed(kNow));
}

// A shell duplicates the output of a group of commands to the standard output, and closes what it opened.
TEST(CloseTracker, AnOpenerThatClosedACopyBeforeTheLastWriteClosesItAgain) {
  CloseTracker handle;
  handle.Opened(kOpener);
  handle.Closed(kOfOpener, kOpener, kNow);
  handle.Changed(kOfChild);
  handle.Closed(kOfChild, kChild, kNow);
  EXPECT_FALSE(handle.IsClosed(kNow)) << "the next command of the group writes, too";
  handle.Closed(kOfOpener, kOpener, kNow);
  EXPECT_TRUE(handle.IsClosed(kNow));
}

TEST(CloseTracker, WithoutAWriteTheProcessThatOpenedItClosesIt) {
  CloseTracker handle;
  handle.Opened(kOpener);
  handle.Changed(0);  // through a mapping
  handle.Closed(kOfUmount, kUmount, kNow);
  EXPECT_FALSE(handle.IsClosed(kNow));
  handle.Closed(kOfOpener, kOpener, kNow);
  EXPECT_TRUE(handle.IsClosed(kNow));
}

TEST(CloseTracker, AnUnknownOpenerLeavesTheLastWriter) {
  CloseTracker handle;
  handle.Changed(kOfChild);
  handle.Closed(kOfUmount, kUmount, kNow);
  EXPECT_FALSE(handle.IsClosed(kNow));
  handle.Closed(kOfChild, 0, kNow);
  EXPECT_TRUE(handle.IsClosed(kNow));
}

}  // namespace
}  // namespace weightfs
