// SPDX-License-Identifier: Apache-2.0
// A mount in the background: the parent waits until the child serves or has failed.
#pragma once

#include <string>
#include <utility>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::cli {

// The child's end of the pipe to the waiting parent. In the foreground it does nothing.
class StartReport {
 public:
  StartReport() = default;
  explicit StartReport(UniqueFd descriptor) : descriptor_(std::move(descriptor)) {}

  // The parent ends with success. From here on standard output goes to /dev/null, and standard error to `log`, a
  // descriptor (-1: to /dev/null), for what libraries and ReportCrashes say at an end nobody expects. Only the first
  // report counts.
  void Ready(int log);
  // The parent prints the line and ends with failure; false when nobody waits any more.
  bool Failed(const std::string& line);

 private:
  void Send(const std::string& text);
  UniqueFd descriptor_;
};

// Forks. In the child (a session of its own, working directory /) it returns the descriptor for a StartReport. The
// parent never returns: it exits with the child's report. Called before any thread is made.
Result<UniqueFd> GoToBackground();

}  // namespace weightfs::cli
