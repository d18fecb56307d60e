// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "store/file/reader.h"

namespace weightfs {
namespace {

constexpr uint64_t kFar = 256 * kMiB;

TEST(StreamTracker, ReadsCloseToEachOtherAreOneStream) {
  StreamTracker census;
  for (uint64_t read = 0; read < 32; ++read) {
    EXPECT_EQ(census.Note(InodeId{7}, kFar + read * kMiB), 1U);
    EXPECT_EQ(census.Note(InodeId{7}, kFar + read * kMiB / 2), 1U);
  }
}

TEST(StreamTracker, FilesAndDistantPartsOfAFileAreStreamsOfTheirOwn) {
  StreamTracker census;
  census.Note(InodeId{7}, 0);
  census.Note(InodeId{8}, 0);
  EXPECT_EQ(census.Note(InodeId{7}, kFar), 3U);
}

TEST(StreamTracker, StreamsWithoutReadersAreForgotten) {
  StreamTracker census;
  for (uint64_t ino = 2; ino < 10; ++ino) census.Note(InodeId{ino}, 0);
  uint64_t places = 0;
  for (int read = 0; read < 64; ++read) places = census.Note(InodeId{7}, 0);
  EXPECT_EQ(places, 1U);
}

}  // namespace
}  // namespace weightfs
