// SPDX-License-Identifier: Apache-2.0
// The progress bar of every long command: percentage, amount, rate and time left, on one line of the terminal.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/progress.h"

namespace weightfs::cli {

// The rate of an operation, smoothed: an exponentially weighted average over the last 10 seconds, or the last quarter
// of the operation where that is longer. Not thread-safe.
class RateEstimator {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // `done` as of `now`. The first call sets the origin; neither argument may decrease.
  void Add(Time now, uint64_t done);
  // Per second; 0 while it is unknown: in the first two seconds, and while nothing is done.
  double PerSecond() const;
  std::optional<std::chrono::seconds> TimeLeft(uint64_t total) const;

 private:
  std::optional<Time> first_, last_;
  uint64_t done_ = 0;
  double weighted_done_ = 0, weighted_seconds_ = 0;
};

// "0:07", "12:34", "2:03:04", "3 d 4 h".
std::string FormatDuration(std::chrono::seconds duration);

// "1,234,567".
std::string FormatCount(uint64_t count);

// "fsck 1/2: extents [####....] 43%  1.2 GiB of 2.7 GiB  312 MiB/s  0:05 left", in at most `columns` columns: the
// rate, then the amount, then the bar and then the end of the title are left out where there is no space for them.
std::string FormatProgress(std::string_view title, const Progress& progress, const RateEstimator& rate, size_t columns);

// The terminal of a progress bar; tests have their own.
struct ProgressTerminal {
  bool shown = false;
  std::function<std::chrono::steady_clock::time_point()> now;
  std::function<size_t()> columns;
  std::function<void(std::string_view)> write;  // throws nothing; a bar that cannot be drawn is no failure
};
// Standard error: shown where it is a terminal that can erase a line (TERM is set and is not "dumb").
ProgressTerminal StandardErrorTerminal();

// One line, drawn when a pass starts and then at most ten times a second, one column narrower than the terminal,
// without color, and erased by the destructor. Silent where the terminal is not shown. Not thread-safe.
class ProgressBar {
 public:
  explicit ProgressBar(std::string title, ProgressTerminal terminal = StandardErrorTerminal());
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void Update(const Progress& progress);

 private:
  using Time = std::chrono::steady_clock::time_point;
  const std::string title_;
  const ProgressTerminal terminal_;
  RateEstimator rate_;  // of this pass
  unsigned pass_ = 0;
  std::optional<Time> drawn_;
};

}  // namespace weightfs::cli
