// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/output.h"

namespace weightfs::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Time = std::chrono::steady_clock::time_point;

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

// A terminal that the test drives.
struct FakeTerminal {
  Time now{seconds(1000)};
  size_t columns = 100;
  std::vector<std::string> written;

  ProgressTerminal Get(bool shown = true) {
    return {shown, [this] { return now; }, [this] { return columns; },
            [this](std::string_view text) { written.emplace_back(text); }};
  }
};

// A rate that has been known for 2.5 seconds, with `done` bytes done.
RateEstimator SteadyRate(uint64_t mib_per_second, uint64_t done) {
  RateEstimator rate;
  for (uint64_t tick = 0; tick <= 25; ++tick) {
    rate.Add(Time(milliseconds(100 * tick)), done - (25 - tick) * mib_per_second * kMiB / 10);
  }
  return rate;
}

TEST(FormatDurationTest, TakesTheUnitsThatMatter) {
  EXPECT_EQ(FormatDuration(seconds(0)), "0:00");
  EXPECT_EQ(FormatDuration(seconds(7)), "0:07");
  EXPECT_EQ(FormatDuration(seconds(754)), "12:34");
  EXPECT_EQ(FormatDuration(seconds(7384)), "2:03:04");
  EXPECT_EQ(FormatDuration(seconds(3 * 86400 + 4 * 3600 + 5)), "3 d 4 h");
}

TEST(FormatCountTest, SeparatesThousands) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
}

TEST(RateEstimatorTest, SaysNothingBeforeItHasSettled) {
  RateEstimator rate;
  EXPECT_EQ(rate.PerSecond(), 0);
  rate.Add(Time(), 0);
  rate.Add(Time(seconds(1)), 100);
  EXPECT_EQ(rate.PerSecond(), 0);
  EXPECT_EQ(rate.TimeLeft(1000), std::nullopt);
  rate.Add(Time(seconds(2)), 200);
  EXPECT_DOUBLE_EQ(rate.PerSecond(), 100);
  EXPECT_EQ(rate.TimeLeft(1000), seconds(8));
}

TEST(RateEstimatorTest, WorkBeforeTheFirstCallDoesNotCount) {
  RateEstimator rate;
  rate.Add(Time(), 1'000'000);
  rate.Add(Time(seconds(4)), 1'000'400);
  EXPECT_DOUBLE_EQ(rate.PerSecond(), 100);
}

TEST(RateEstimatorTest, NothingDoneGivesNoTime) {
  RateEstimator rate;
  rate.Add(Time(), 0);
  rate.Add(Time(seconds(30)), 0);
  EXPECT_EQ(rate.TimeLeft(1000), std::nullopt);
}

// A burst of 10 times the rate for half a second, and a stall of a second: the time left changes by less than a third.
TEST(RateEstimatorTest, ABurstOrAStallDoesNotMakeTheTimeLeftJump) {
  RateEstimator rate;
  Time now;
  uint64_t done = 0;
  for (int tick = 0; tick < 300; ++tick) rate.Add(now += milliseconds(100), done += 10);
  ASSERT_NEAR(rate.PerSecond(), 100, 1);
  for (int tick = 0; tick < 5; ++tick) rate.Add(now += milliseconds(100), done += 100);
  EXPECT_LT(rate.PerSecond(), 150);
  rate.Add(now += seconds(1), done);
  EXPECT_GT(rate.PerSecond(), 75);
}

TEST(RateEstimatorTest, FollowsALastingChange) {
  RateEstimator rate;
  Time now;
  uint64_t done = 0;
  for (int tick = 0; tick < 300; ++tick) rate.Add(now += milliseconds(100), done += 10);
  for (int tick = 0; tick < 600; ++tick) rate.Add(now += milliseconds(100), done += 20);
  EXPECT_GT(rate.PerSecond(), 180);
}

TEST(FormatProgressTest, BytesHaveUnitsAndTimeLeft) {
  const Progress progress{.step = "data", .done = kGiB, .total = 4 * kGiB, .pass = 2, .passes = 2};
  EXPECT_EQ(FormatProgress("fsck", progress, SteadyRate(256, kGiB), 100),
            "fsck 2/2: data [#######.......................] 25%  1.00 GiB of 4.00 GiB  256.0 MiB/s  0:12 left");
}

TEST(FormatProgressTest, CountsHaveSeparators) {
  const Progress progress{
      .step = "repairing", .done = 1234567, .total = 12345678, .unit = Progress::Unit::kItems, .items = "repairs"};
  EXPECT_THAT(FormatProgress("fsck", progress, RateEstimator(), 100),
              AllOf(HasSubstr(" 9%"), HasSubstr("1,234,567 of 12,345,678 repairs"), Not(HasSubstr("left"))));
}

TEST(FormatProgressTest, SlowItemsAreCountedByTheMinute) {
  RateEstimator rate;
  rate.Add(Time(), 0);
  rate.Add(Time(seconds(60)), 12);
  const Progress progress{.step = "s", .done = 12, .total = 20, .unit = Progress::Unit::kItems, .items = "files"};
  EXPECT_THAT(FormatProgress("t", progress, rate, 100), HasSubstr("12/min"));
}

TEST(FormatProgressTest, PartsAreAPercentageAndATime) {
  const Progress progress{
      .step = "read: round 1 of 5", .done = kGiB, .total = 4 * kGiB, .unit = Progress::Unit::kParts};
  EXPECT_EQ(FormatProgress("bench", progress, SteadyRate(256, kGiB), 100),
            "bench: read: round 1 of 5 [#######.......................] 25%  0:12 left");
}

TEST(FormatProgressTest, WithoutATotalThereIsNoBar) {
  EXPECT_EQ(FormatProgress("fsck", {.step = "inodes", .done = 3 * kMiB}, SteadyRate(1, 3 * kMiB), 100),
            "fsck: inodes  3.00 MiB  1.00 MiB/s");
}

TEST(FormatProgressTest, MoreThanTheTotalIsAllOfIt) {
  EXPECT_THAT(FormatProgress("fsck", {.step = "inodes", .done = 3 * kMiB, .total = kMiB}, RateEstimator(), 100),
              AllOf(HasSubstr("100%"), HasSubstr("1.00 MiB of 1.00 MiB")));
}

TEST(FormatProgressTest, NeverWiderThanTheTerminalAndThePercentageStays) {
  const Progress progress{
      .step = "making a second store, mounted without verific\u00e4tion", .done = kGiB, .total = 4 * kGiB};
  const RateEstimator rate = SteadyRate(256, kGiB);
  for (size_t columns = 0; columns <= 160; ++columns) {
    const std::string line = FormatProgress("bench", progress, rate, columns);
    EXPECT_LE(TextWidth(line), columns) << line;
    if (columns >= 3) {
      EXPECT_THAT(line, HasSubstr("25%")) << columns;
    }
  }
  EXPECT_THAT(FormatProgress("bench", progress, rate, 24), AllOf(HasSubstr("left"), Not(HasSubstr("MiB/s"))));
}

TEST(ProgressBarTest, RedrawsTenTimesASecondAtMostAndErasesItsLine) {
  FakeTerminal terminal;
  {
    ProgressBar bar("format", terminal.Get());
    for (uint64_t step = 0; step < 1000; ++step) {
      bar.Update({.step = "writing zeros", .done = step * kMiB, .total = 1000 * kMiB});
      terminal.now += milliseconds(10);
    }
  }
  EXPECT_EQ(terminal.written.size(), 101u);
  for (const auto& text : terminal.written) EXPECT_THAT(text, testing::StartsWith("\r\x1b[K"));
  EXPECT_EQ(terminal.written.back(), "\r\x1b[K");
  EXPECT_THAT(terminal.written[99], AllOf(HasSubstr("99%"), HasSubstr("100.0 MiB/s"), HasSubstr("0:00 left")));
}

// Prints only the sequence that erases the line: no color, with or without NO_COLOR.
TEST(ProgressBarTest, UsesNoColor) {
  FakeTerminal terminal;
  ProgressBar bar("format", terminal.Get());
  bar.Update({.step = "writing zeros", .done = kMiB, .total = 2 * kMiB});
  ASSERT_EQ(terminal.written.size(), 1u);
  EXPECT_EQ(terminal.written[0].rfind('\x1b'), 1u);
}

TEST(ProgressBarTest, FollowsTheWidthOfTheTerminal) {
  FakeTerminal terminal;
  ProgressBar bar("format", terminal.Get());
  for (const size_t columns : {120, 40, 20}) {
    terminal.columns = columns;
    terminal.now += seconds(1);
    bar.Update({.step = "writing zeros", .done = kMiB, .total = 2 * kMiB});
    EXPECT_LT(TextWidth(terminal.written.back().substr(4)), columns);
  }
}

TEST(ProgressBarTest, EveryPassHasARateOfItsOwn) {
  FakeTerminal terminal;
  ProgressBar bar("fsck", terminal.Get());
  for (uint64_t step = 0; step <= 5; ++step) {
    bar.Update({.step = "inodes", .done = step * kMiB, .total = 5 * kMiB, .pass = 1, .passes = 2});
    terminal.now += seconds(1);
  }
  EXPECT_THAT(terminal.written.back(), HasSubstr("1.00 MiB/s"));
  for (uint64_t step = 0; step <= 5; ++step) {
    bar.Update({.step = "data", .done = step * 100 * kMiB, .total = 1000 * kMiB, .pass = 2, .passes = 2});
    terminal.now += seconds(1);
  }
  EXPECT_THAT(terminal.written.back(), AllOf(HasSubstr("fsck 2/2: data"), HasSubstr("100.0 MiB/s")));
}

TEST(ProgressBarTest, SaysNothingWhereThereIsNoTerminal) {
  FakeTerminal terminal;
  {
    ProgressBar bar("format", terminal.Get(/*shown=*/false));
    bar.Update({.step = "writing zeros", .done = kMiB, .total = 2 * kMiB});
  }
  EXPECT_TRUE(terminal.written.empty());
}

}  // namespace
}  // namespace weightfs::cli
