// SPDX-License-Identifier: Apache-2.0
// The rate of a scrub. Pure arithmetic on given times.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/units.h"

namespace weightfs {

// Bytes per second.
struct ScrubRates {
  ByteCount quiet;  // without other I/O: the scrub ends in a quarter of its period
  ByteCount busy;   // beside much other I/O: it ends in four fifths of its period
};

// The rates for a scrub of `total` bytes. `most` bounds both, also if the scrub then takes longer than its period; the
// rates are not below a minimum, so that a small store does not take days.
ScrubRates ChooseScrubRates(ByteCount total, std::chrono::milliseconds period, ByteCount most);

// Says how long to wait between reads. Not thread-safe.
class ScrubPace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // A read counts as at least this much, because small reads load a device too.
  static constexpr ByteCount kLeastRead{64 * kKiB};
  // More than this per second by others is much I/O.
  static constexpr ByteCount kBusy{32 * kMiB};

  explicit ScrubPace(const ScrubRates& rates) : rates_(rates) {}

  // Call this after a read of `size` bytes. `others` counts the bytes that other users of the devices have transferred
  // so far. Returns the time of the next read.
  Time NextRead(ByteCount size, uint64_t others, Time now);

  ByteCount rate() const { return busy_ ? rates_.busy : rates_.quiet; }

 private:
  // Reads do not catch up for more than this after a delay.
  static constexpr std::chrono::milliseconds kLongestBurst{100};
  // The interval over which the I/O of others is measured.
  static constexpr std::chrono::milliseconds kInterval{250};

  void NoteOthers(uint64_t others, Time now);

  const ScrubRates rates_;
  Time next_{};
  Time measured_at_{};
  uint64_t measured_ = 0;
  bool busy_ = false;
};

}  // namespace weightfs
