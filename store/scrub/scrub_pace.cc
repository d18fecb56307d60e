// SPDX-License-Identifier: Apache-2.0
#include "store/scrub/scrub_pace.h"

#include <algorithm>

namespace weightfs {
namespace {

constexpr ByteCount kLeastQuiet{16 * kMiB}, kLeastBusy{2 * kMiB};  // per second

}  // namespace

ScrubRates ChooseScrubRates(ByteCount total, std::chrono::milliseconds period, ByteCount most) {
  const double seconds = std::max(0.001, std::chrono::duration<double>(period).count());
  // Bounded before the conversion, which is undefined for values that do not fit.
  const double needed = std::min(static_cast<double>(total.value) / seconds, 1e15);
  const auto bounded = [&](double rate, ByteCount least) {
    return std::min(std::max(ByteCount{static_cast<uint64_t>(rate)}, least), most);
  };
  return {bounded(needed * 4, kLeastQuiet), bounded(needed * 1.25, kLeastBusy)};
}

ScrubPace::Time ScrubPace::NextRead(ByteCount size, uint64_t others, Time now) {
  NoteOthers(others, now);
  const double cost = static_cast<double>(std::max(size, kLeastRead).value);
  const std::chrono::duration<double> took(cost / static_cast<double>(std::max<uint64_t>(rate().value, 1)));
  next_ = std::max(next_, now - kLongestBurst) + std::chrono::duration_cast<Time::duration>(took);
  return next_;
}

void ScrubPace::NoteOthers(uint64_t others, Time now) {
  if (measured_at_ == Time{}) {
    measured_at_ = now;
    measured_ = others;
    return;
  }
  if (now - measured_at_ < kInterval) return;
  const double seconds = std::chrono::duration<double>(now - measured_at_).count();
  busy_ = static_cast<double>(others - measured_) > static_cast<double>(kBusy.value) * seconds;
  measured_at_ = now;
  measured_ = others;
}

}  // namespace weightfs
