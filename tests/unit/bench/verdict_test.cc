// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weightfs::bench {
namespace {

using testing::HasSubstr;

// A row on throttled devices that was measured at these rates, in MB/s.
RowOutcome DevicesRow(std::vector<double> two, std::vector<double> one) {
  RowOutcome row;
  row.spec = FindRow("devices-read");
  for (const double rate : two) row.samples[Way::kWeightfs].push_back({.rate = rate * 1e6});
  for (const double rate : one) row.samples[Way::kOneDevice].push_back({.rate = rate * 1e6});
  JudgeDevices(&row);
  return row;
}

std::vector<Check::State> States(const RowOutcome& row) {
  std::vector<Check::State> states;
  for (const Check& check : row.checks) states.push_back(check.state());
  return states;
}

constexpr Check::State kOk = Check::State::kOk, kShort = Check::State::kShort;

TEST(JudgeDevicesTest, TwiceOneDeviceIsWhatTwoCanGive) {
  EXPECT_EQ(States(DevicesRow({398, 395, 391}, {199, 198, 200})), (std::vector{kOk, kOk}));
}

TEST(JudgeDevicesTest, LittleMoreThanOneDeviceMissesTheTarget) {
  EXPECT_EQ(States(DevicesRow({250, 240, 260}, {199, 198, 200})), (std::vector{kShort, kOk}));
}

// One device far below its limit: the ratio says nothing about the two.
TEST(JudgeDevicesTest, MoreThanTheNumberOfDevicesIsNoSuccess) {
  const RowOutcome row = DevicesRow({390, 392, 394}, {65, 66, 64});
  EXPECT_EQ(States(row), (std::vector{kOk, kShort}));
  EXPECT_NEAR(row.checks[1].value, 6, 0.1);
  EXPECT_TRUE(row.checks[1].at_most);
}

TEST(JudgeDevicesTest, AThrottleThatDidNotHoldLeavesNothingToCompare) {
  const RowOutcome two = DevicesRow({1273, 1200, 1250}, {199, 198, 200});
  EXPECT_TRUE(two.checks.empty());
  EXPECT_TRUE(two.samples.empty());
  EXPECT_THAT(two.not_measured.at(Way::kWeightfs),
              HasSubstr("the throttle did not hold: 2 throttled devices gave 1250 MB/s"));
  const RowOutcome one = DevicesRow({398, 395, 391}, {612, 610, 600});
  EXPECT_TRUE(one.checks.empty());
  EXPECT_THAT(one.not_measured.at(Way::kWeightfs), HasSubstr("1 throttled device gave 610 MB/s of 200 at most"));
}

TEST(JudgeDevicesTest, OneNoisyRoundDoesNotDecide) {
  EXPECT_EQ(States(DevicesRow({398, 1273, 391}, {199, 198, 300})), (std::vector{kOk, kOk}));
}

TEST(JudgeDevicesTest, OtherRowsAreNotItsConcern) {
  RowOutcome row;
  row.spec = FindRow("read-1m");
  row.samples[Way::kWeightfs].push_back({.rate = 9e9});
  JudgeDevices(&row);
  EXPECT_TRUE(row.checks.empty());
  EXPECT_FALSE(row.samples.empty());
}

TEST(RowsTest, TheBoundsOfTheDevicesAreListed) {
  EXPECT_EQ(HostTargetText(*FindRow("devices-write")), "1.9 to 2.1 × one device");
}

}  // namespace
}  // namespace weightfs::bench
