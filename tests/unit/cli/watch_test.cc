// SPDX-License-Identifier: Apache-2.0
#include "cli/watch/watch.h"

#include <gtest/gtest.h>

namespace weightfs::cli {
namespace {

TEST(FitScreen, EveryLineErasesWhatWasBehindIt) {
  EXPECT_EQ(FitScreen("a\n\nb\n", 0, 0), "a\x1b[K\n\x1b[K\nb\x1b[K\n");
}

TEST(FitScreen, LinesAndRowsThatDoNotFitAreCut) {
  EXPECT_EQ(FitScreen("12345\n123\n", 4, 0), "1234\x1b[K\n123\x1b[K\n");
  EXPECT_EQ(FitScreen("a\nb\nc\n", 80, 2), "a\x1b[K\nb\x1b[K\n");
}

TEST(FitScreen, ACharacterOfSeveralBytesIsCutAsAWhole) { EXPECT_EQ(FitScreen("1 µs\n", 3, 0), "1 µ\x1b[K\n"); }

TEST(FitScreen, CodesTakeNoColumnsAndAreKept) {
  EXPECT_EQ(FitScreen("\x1b[1mbold\x1b[0m\n", 2, 0), "\x1b[1mbo\x1b[0m\x1b[K\n");
  EXPECT_EQ(FitScreen("a\x1b[1", 80, 0), "a\x1b[1\x1b[K\n") << "a code without an end";
}

}  // namespace
}  // namespace weightfs::cli
