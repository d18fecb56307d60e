// SPDX-License-Identifier: Apache-2.0
#include "fs/read_history.h"

#include <gtest/gtest.h>

namespace weightfs {
namespace {

constexpr InodeId kFile{5};
constexpr uint64_t kSize = 1000;

TEST(ReadHistory, AFileReadWholeOnceIsHot) {
  ReadHistory history;
  EXPECT_FALSE(history.IsHot(kFile, kSize));
  history.Closed(kFile, kSize, kSize / 2, false);
  EXPECT_FALSE(history.IsHot(kFile, kSize)) << "half of it";
  history.Closed(kFile, kSize, kSize, false);
  EXPECT_TRUE(history.IsHot(kFile, kSize));
  EXPECT_FALSE(history.IsHot(InodeId{6}, kSize));
}

TEST(ReadHistory, AFileLargerThanMemoryIsNeverHot) {
  ReadHistory history;
  history.Closed(kFile, UINT64_MAX, UINT64_MAX, false);
  EXPECT_FALSE(history.IsHot(kFile, UINT64_MAX));
}

TEST(ReadHistory, PagesThatAreGoneSendTheFileBackForAWhile) {
  ReadHistory history;
  history.Closed(kFile, kSize, kSize, false);
  history.Closed(kFile, kSize, kSize, true);
  EXPECT_TRUE(history.IsHot(kFile, kSize)) << "the first reader fills";
  history.Closed(kFile, kSize, 0, true);
  EXPECT_TRUE(history.IsHot(kFile, kSize));
  history.Closed(kFile, kSize, kSize, true);
  int direct = 0;
  for (; !history.IsHot(kFile, kSize) && direct < 100; ++direct) history.Closed(kFile, kSize, kSize, false);
  EXPECT_EQ(direct, 8);
}

TEST(ReadHistory, ForgettingMakesAFileNew) {
  ReadHistory history;
  history.Closed(kFile, kSize, kSize, false);
  history.Forget(kFile);
  EXPECT_FALSE(history.IsHot(kFile, kSize));
}

}  // namespace
}  // namespace weightfs
