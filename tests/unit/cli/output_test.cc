// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <gtest/gtest.h>

namespace weightfs::cli {
namespace {

TEST(TableTest, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({{"size", true}, {"path"}});
  table.Add({"1", "a"});
  table.Add({"12345", "bc"});
  EXPECT_EQ(table.ToString(), " size  path\n    1  a\n12345  bc\n");
  EXPECT_EQ(table.ToString(/*titles=*/false), "    1  a\n12345  bc\n");
}

TEST(TableTest, WidthCountsCharactersNotBytesNorColors) {
  Table table({{"a"}, {"b"}});
  table.Add({"\u00e4\u00f6", "x"});
  table.Add({"\x1b[1mab\x1b[0m", "y"});
  EXPECT_EQ(table.ToString(false), "\u00e4\u00f6  x\n\x1b[1mab\x1b[0m  y\n");
}

TEST(LineTest, AnErrorWithoutTextIsNamedByItsCode) {
  EXPECT_EQ(Line({ErrorCode::kBusy}), "busy");
  EXPECT_EQ(Line({ErrorCode::kBusy, "the store is in use"}), "the store is in use");
}

}  // namespace
}  // namespace weightfs::cli
