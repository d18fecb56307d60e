// SPDX-License-Identifier: Apache-2.0
// The progress of all long commands: percentage, amount, rate and time left, on one line of the terminal.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "common/progress.h"

namespace weightfs::cli {

// The smoothed rate of an operation: an exponentially weighted average over the last 10 seconds, or over the last
// quarter of the operation if that is longer. Not thread-safe.
class RateEstimator {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Records that `done` was reached at `now`. The first call sets the origin; neither argument may decrease.
  void Add(Time now, uint64_t done);
  // The rate per second. 0 while it is unknown: in the first two seconds, and while nothing is done.
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

// "verify 1/2: extents [####....] 43%  1.2 GiB of 2.7 GiB  312 MiB/s  0:05 left", in at most `columns` columns. If
// space is short, drops the rate, then the amount, then the bar, and then truncates the title.
std::string FormatProgress(std::string_view title, const Progress& progress, const RateEstimator& rate, size_t columns);

// The terminal of a progress bar. Tests provide their own.
struct ProgressTerminal {
  bool shown = false;
  std::function<std::chrono::steady_clock::time_point()> now;
  std::function<size_t()> columns;
  std::function<void(std::string_view)> write;  // never throws; drawing errors are ignored
};
// Standard error. It is shown if it is a terminal that can erase a line (TERM is set and is not "dumb").
ProgressTerminal StandardErrorTerminal();

// One line, drawn when a pass starts and then at most ten times per second, one column narrower than the terminal,
// without color. The destructor erases it. Does nothing if the terminal is not shown. Not thread-safe.
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
  RateEstimator rate_;  // rate in the current pass
  unsigned pass_ = 0;
  std::optional<Time> drawn_;
};

// The progress of a push or pull: a bar on a terminal, or lines for programs. Not thread-safe.
class TransferProgress {
 public:
  // `title`: "push"; `step`: what is transferred. `lines`: writes {"done": BYTES, "total": BYTES} to standard error, at
  // most ten times a second and at the end, instead of the bar.
  TransferProgress(std::string title, std::string step, bool lines);
  void Update(uint64_t done, uint64_t total);

 private:
  const std::string step_;
  // Absent if lines are written.
  std::optional<ProgressBar> bar_;
  std::optional<std::chrono::steady_clock::time_point> written_;
  uint64_t last_done_ = 0;
};

}  // namespace weightfs::cli
