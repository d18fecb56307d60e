// SPDX-License-Identifier: Apache-2.0
#include "store/volume/pool_fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "engine/superblock.h"

namespace weightfs {
namespace {

constexpr ByteCount kSize{kSmallestProbed};

// A disk that stores no zeros, with a clock of its own: a write that stores a MiB for the first time advances it by
// `first` milliseconds per MiB, any other write by one.
class ThinDisk final : public BlockDevice {
 public:
  explicit ThinDisk(int first) : first_(first) {}

  ByteCount size() const override { return kSize; }
  std::string_view path() const override { return "thin disk"; }
  Result<void> Flush() override { return {}; }
  // Completes at once, which is allowed for callers without locks.
  void Submit(std::span<IoRequest* const> requests) override {
    for (IoRequest* request : requests) {
      const bool zeros = std::all_of(request->data, request->data + kBlockSize,  // as in the other blocks
                                     [](std::byte byte) { return byte == std::byte{0}; });
      for (uint64_t at = 0; at < request->size.value; at += kMiB) {
        const bool is_first = !zeros && stored_.insert((request->offset.value + at) / kMiB).second;
        now_ += std::chrono::milliseconds(is_first ? first_ : 1);
      }
      ++writes_;
      request->OnComplete(writes_ == failing_ ? Result<void>(ErrorCode::kNoSpace) : Result<void>());
    }
  }

  std::chrono::steady_clock::time_point now() const { return now_; }
  size_t stored() const { return stored_.size(); }  // MiB
  void FailWrite(int number) { failing_ = number; }

 private:
  const int first_;
  std::chrono::steady_clock::time_point now_;
  std::set<uint64_t> stored_;
  int writes_ = 0, failing_ = 0;
};

Result<FillReport> Fill(ThinDisk& disk, PoolFill fill, FillOptions options = {}) {
  options.now = [&disk] { return disk.now(); };
  const FillTarget target{&disk, disk.size(), fill};
  return FillPool({&target, 1}, options);
}

TEST(FirstWriteSlowdownTest, ComparesMedians) {
  const auto slowdown = FirstWriteSlowdown({.first = {2, 9, 2.5, 2.1}, .later = {1, 1, 0.1}});
  ASSERT_TRUE(slowdown.has_value());
  EXPECT_DOUBLE_EQ(*slowdown, 2.5);
}

TEST(FirstWriteSlowdownTest, TooFewTimesGiveNoResult) {
  EXPECT_FALSE(FirstWriteSlowdown({}).has_value());
  EXPECT_FALSE(FirstWriteSlowdown({.first = {2, 2, 2, 2}, .later = {1, 1}}).has_value());
  EXPECT_FALSE(FirstWriteSlowdown({.first = {1, 1, 1}, .later = {0, 0, 0}}).has_value());
}

TEST(ChooseFillTest, DataWhereFirstWritesAreSlow) {
  EXPECT_EQ(ChooseFill(kSlowFirstWrite), PoolFill::kData);
  EXPECT_EQ(ChooseFill(kSlowFirstWrite - 0.01), PoolFill::kZeros);
  EXPECT_EQ(ChooseFill(std::nullopt), PoolFill::kZeros);
}

TEST(FillPoolTest, ADiskThatStoresNoZerosIsFilledWithData) {
  ThinDisk disk(2);
  const auto report = Fill(disk, PoolFill::kAuto);
  ASSERT_TRUE(report.has_value()) << ToString(report.error());
  ASSERT_EQ(report->devices.size(), 1U);
  EXPECT_EQ(report->devices[0].content, PoolFill::kData);
  EXPECT_DOUBLE_EQ(report->devices[0].first_write_slowdown.value_or(0), 2);
  EXPECT_EQ(disk.stored(), (kSize.value - 2 * kDataOffset) / kMiB);
}

TEST(FillPoolTest, ADiskWithFastFirstWritesIsFilledWithZeros) {
  ThinDisk disk(1);
  const auto report = Fill(disk, PoolFill::kAuto);
  ASSERT_TRUE(report.has_value()) << ToString(report.error());
  EXPECT_EQ(report->devices[0].content, PoolFill::kZeros);
  EXPECT_DOUBLE_EQ(report->devices[0].first_write_slowdown.value_or(0), 1);
}

TEST(FillPoolTest, ARequestedFillIsNotProbed) {
  for (const PoolFill fill : {PoolFill::kZeros, PoolFill::kData, PoolFill::kNone}) {
    ThinDisk disk(2);
    const auto report = Fill(disk, fill);
    ASSERT_TRUE(report.has_value()) << ToString(report.error());
    EXPECT_EQ(report->devices[0].content, fill);
    EXPECT_FALSE(report->devices[0].first_write_slowdown.has_value());
    EXPECT_EQ(disk.stored() > 0, fill == PoolFill::kData);
  }
}

TEST(FillPoolTest, ASlowProbeEndsAfterTwoSeconds) {
  constexpr int kMsPerMiB = 1000;
  ThinDisk disk(kMsPerMiB);
  std::chrono::steady_clock::duration probed{};
  FillOptions options;
  options.progress = [&](const Progress&) {
    if (probed.count() == 0) probed = disk.now().time_since_epoch();
  };
  const auto report = Fill(disk, PoolFill::kAuto, options);
  ASSERT_TRUE(report.has_value()) << ToString(report.error());
  EXPECT_EQ(report->devices[0].content, PoolFill::kZeros);
  EXPECT_FALSE(report->devices[0].first_write_slowdown.has_value());
  EXPECT_LT(probed, std::chrono::seconds(2) + 20 * std::chrono::milliseconds(kMsPerMiB));  // and one write more
}

TEST(FillPoolTest, ProgressNamesTheContent) {
  for (const PoolFill fill : {PoolFill::kZeros, PoolFill::kData}) {
    ThinDisk disk(1);
    std::set<std::string> steps;
    FillOptions options;
    options.progress = [&](const Progress& progress) { steps.insert(std::string(progress.step)); };
    ASSERT_TRUE(Fill(disk, fill, options).has_value());
    EXPECT_EQ(steps, std::set<std::string>({fill == PoolFill::kData ? "writing data" : "writing zeros"}));
  }
}

TEST(FillPoolTest, AFailedWriteOfTheProbeNamesTheDevice) {
  ThinDisk disk(1);
  disk.FailWrite(3);
  const auto report = Fill(disk, PoolFill::kAuto);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(report.error().what.find("thin disk: cannot be written at byte "), 0U) << report.error().what;
}

TEST(FillPoolTest, ACanceledProbeWritesNothing) {
  ThinDisk disk(1);
  const std::atomic<bool> cancel{true};
  const auto report = Fill(disk, PoolFill::kAuto, {.cancel = &cancel});
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, ErrorCode::kShutdown);
  EXPECT_EQ(disk.stored(), 0U);
}

}  // namespace
}  // namespace weightfs
