// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <gtest/gtest.h>

#include "store/scrub/scrub_state.h"

namespace weightfs {
namespace {

using std::chrono::hours, std::chrono::milliseconds, std::chrono::seconds;

ScrubState Example() {
  ScrubState state;
  state.phase = ScrubPhase::kData;
  state.started_ns = 1'700'000'000'000'000'000;
  state.position = {InodeId{42}, FileBlock{512}};
  state.checked_bytes = 4096;
  state.total_bytes = 8192;
  state.found = {
      .blocks = 3, .files = 2, .replica = true, .listed = {{InodeId{7}, 4096, 2, {}}, {InodeId{9}, 0, 1, {}}}};
  state.last_started_ns = 5;
  state.last_completed_ns = 6;
  state.last_found.catalog = true;
  return state;
}

TEST(ScrubState, KeepsEveryMember) {
  const auto decoded = DecodeScrubState(EncodeScrubState(Example()));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(EncodeScrubState(*decoded), EncodeScrubState(Example()));
  EXPECT_EQ(decoded->position, (ScrubPosition{InodeId{42}, FileBlock{512}}));
  EXPECT_EQ(decoded->found.listed.size(), 2U);
  EXPECT_EQ(decoded->found.listed[1].ino, InodeId{9});
  EXPECT_TRUE(decoded->found.replica && decoded->last_found.catalog);
  EXPECT_FALSE(decoded->found.catalog || decoded->last_found.replica);
}

// The example of docs/FORMAT.md.
TEST(ScrubState, HasTheBytesOfTheFormat) {
  ScrubState state;
  state.last_started_ns = 1'700'000'000'000'000'000;
  state.last_completed_ns = 1'700'000'060'000'000'000;
  state.last_found = {.blocks = 1, .files = 1, .listed = {{InodeId{42}, 8192, 1, {}}}};
  std::string hex;
  for (const char c : EncodeScrubState(state)) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<uint8_t>(c) >> 4];
    hex += kDigits[static_cast<uint8_t>(c) & 15];
  }
  EXPECT_EQ(hex,
            "0100" "0000000000000000" "0000000000000000" "0000000000000000" "0000000000000000" "0000000000000000"
            "00002a36fe9c9717" "0058712e0c9d9717"
            "0000000000000000" "0000000000000000" "00" "00"
            "0100000000000000" "0100000000000000" "00" "01"
            "2a00000000000000" "0020000000000000" "0100000000000000");
}

TEST(ScrubState, RejectsOtherBytes) {
  const std::string bytes = EncodeScrubState(Example());
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(DecodeScrubState(bytes.substr(0, size))) << size;
  EXPECT_FALSE(DecodeScrubState(bytes + "x"));
  EXPECT_FALSE(DecodeScrubState("\2" + bytes.substr(1)));
  EXPECT_FALSE(DecodeScrubState(bytes.substr(0, 1) + "\7" + bytes.substr(2)));
}

TEST(ScrubPace, EndsWellWithinThePeriod) {
  const ByteCount total{10 * kTiB};
  const ScrubRates rates = ChooseScrubRates(total, hours(7 * 24), ByteCount{kGiB});
  EXPECT_NEAR(static_cast<double>(total.value / rates.quiet.value), 7 * 86400 / 4, 2);
  EXPECT_NEAR(static_cast<double>(total.value / rates.busy.value), 7 * 86400 * 0.8, 2);
}

TEST(ScrubPace, HasAMinimumAndAMaximum) {
  const ScrubRates small = ChooseScrubRates(ByteCount{kMiB}, hours(24), ByteCount{256 * kMiB});
  EXPECT_EQ(small.quiet, ByteCount{16 * kMiB});
  EXPECT_EQ(small.busy, ByteCount{2 * kMiB});
  const ScrubRates large = ChooseScrubRates(ByteCount{1000 * kTiB}, milliseconds(1), ByteCount{256 * kMiB});
  EXPECT_EQ(large.quiet, ByteCount{256 * kMiB});
  EXPECT_EQ(large.busy, ByteCount{256 * kMiB});
  EXPECT_EQ(ChooseScrubRates(ByteCount{kMiB}, hours(24), ByteCount{kMiB}).quiet, ByteCount{kMiB});
}

TEST(ScrubPace, ReadsAsFastAsTheRate) {
  ScrubPace pace({.quiet = ByteCount{64 * kMiB}, .busy = ByteCount{kMiB}});
  const ScrubPace::Time start{seconds(1000)};
  ScrubPace::Time now = start;
  for (int i = 0; i < 640; ++i) now = std::max(now, pace.NextRead(ByteCount{kMiB}, 0, now));
  EXPECT_NEAR(std::chrono::duration<double>(now - start).count(), 10, 0.2);
}

TEST(ScrubPace, CountsSmallReadsAsLarger) {
  ScrubPace pace({.quiet = ByteCount{64 * kMiB}, .busy = ByteCount{kMiB}});
  const ScrubPace::Time start{seconds(1000)};
  ScrubPace::Time now = start;
  for (int i = 0; i < 1024; ++i) now = std::max(now, pace.NextRead(ByteCount{kBlockSize}, 0, now));
  EXPECT_NEAR(std::chrono::duration<double>(now - start).count(), 1, 0.2);
}

TEST(ScrubPace, DoesNotCatchUpAfterADelay) {
  ScrubPace pace({.quiet = ByteCount{kMiB}, .busy = ByteCount{kMiB}});
  const ScrubPace::Time start{seconds(1000)};
  static_cast<void>(pace.NextRead(ByteCount{kMiB}, 0, start));
  const ScrubPace::Time later = start + seconds(100);
  EXPECT_GE(pace.NextRead(ByteCount{kMiB}, 0, later) - later, milliseconds(800));
}

TEST(ScrubPace, SlowsDownBesideOtherIo) {
  ScrubPace pace({.quiet = ByteCount{64 * kMiB}, .busy = ByteCount{4 * kMiB}});
  ScrubPace::Time now{seconds(1000)};
  static_cast<void>(pace.NextRead(ByteCount{kMiB}, 0, now));
  EXPECT_EQ(pace.rate(), ByteCount{64 * kMiB});
  now += seconds(1);
  static_cast<void>(pace.NextRead(ByteCount{kMiB}, 100 * kMiB, now));
  EXPECT_EQ(pace.rate(), ByteCount{4 * kMiB});
  now += seconds(1);
  static_cast<void>(pace.NextRead(ByteCount{kMiB}, 101 * kMiB, now));
  EXPECT_EQ(pace.rate(), ByteCount{64 * kMiB});
}

}  // namespace
}  // namespace weightfs
