// SPDX-License-Identifier: Apache-2.0
// Runs a mount in the background: the parent waits until the child serves requests or has failed.
#pragma once

#include <string>
#include <utility>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::cli {

// The child's end of the pipe to the waiting parent. It does nothing in the foreground.
class StartReport {
 public:
  StartReport() = default;
  explicit StartReport(UniqueFd descriptor) : descriptor_(std::move(descriptor)) {}

  // Lets the parent exit with success. From here on standard output goes to /dev/null, and standard error to the
  // descriptor `log` (-1: to /dev/null), for messages of libraries and ReportCrashes at an unexpected end. Only the
  // first report counts.
  void Ready(int log);
  // Lets the parent print the line and exit with failure. Returns false if the parent no longer waits.
  bool Failed(const std::string& line);

 private:
  void Send(const std::string& text);
  UniqueFd descriptor_;
};

// Forks. In the child, which is in a new session with working directory /, returns the descriptor for a StartReport.
// The parent never returns: it exits with the child's report. Must be called before any thread is created.
Result<UniqueFd> GoToBackground();

}  // namespace weightfs::cli
