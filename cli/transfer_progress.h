// SPDX-License-Identifier: Apache-2.0
// The progress of a push or pull: a bar on a terminal, or lines for programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/progress.h"

namespace weightfs::cli {

// Not thread-safe.
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
