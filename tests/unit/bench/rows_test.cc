// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/suite/suite.h"

namespace weightfs::bench {
namespace {

TEST(RowsTest, TheBoundsOfTheDevicesAreListed) {
  EXPECT_EQ(HostTargetText(*FindRow("devices-write")), "1.9 to 2.1 × one device");
}

TEST(RowsTest, SlowHostsHaveATargetOfTheirOwn) {
  EXPECT_EQ(HostTargetText(*FindRow("read-1m")), "≥ 1.0; ≥ 1.3 where the host is slow");
  EXPECT_EQ(ReferenceTargetText(*FindRow("read-1m")), "≥ 0.95");
}

TEST(RowsTest, RowsAreSelectedByNameGroupAndPattern) {
  const RowSpec& row = *FindRow("read-1m");
  EXPECT_TRUE(IsSelected(row, {}));
  EXPECT_TRUE(IsSelected(row, {"numpy", "read"}));
  EXPECT_TRUE(IsSelected(row, {"*-1m"}));
  EXPECT_FALSE(IsSelected(row, {"write*"}));
  EXPECT_EQ(FindRow("read-2m"), nullptr);
}

TEST(RowsTest, CurvesThatCannotBeMeasuredAreNotSelected) {
  using testing::ElementsAre;
  SuiteOptions options;
  EXPECT_THAT(SelectedCurves(options), ElementsAre("streams", "aging", "files"));
  options.large_size = kLeastSize;
  EXPECT_THAT(SelectedCurves(options), ElementsAre("streams", "large", "aging", "files"));
  options.only = {"read", "[!f]*m*"};
  EXPECT_THAT(SelectedCurves(options), ElementsAre("streams"));
  options.only = {"scaling"};
  options.store = "/srv/tensors";
  EXPECT_THAT(SelectedCurves(options), ElementsAre("streams"));
}

}  // namespace
}  // namespace weightfs::bench
