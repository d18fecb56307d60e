// SPDX-License-Identifier: Apache-2.0
#include "s3/process_output.h"

#include "common/make_error.h"
#include "common/result.h"
#include "common/run_program.h"

namespace weightfs::s3 {

Result<std::string> ProcessOutput(const std::string& command, std::chrono::seconds timeout,
                                  const std::atomic<bool>& cancelled) {
  constexpr size_t kMaxOutput = 1 << 20;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto check = [&](size_t printed) -> Result<void> {
    if (cancelled.load()) return ErrorCode::kCancelled;
    if (printed > kMaxOutput) return Error{ErrorCode::kIo, "its output is too long"};
    if (std::chrono::steady_clock::now() < deadline) return {};
    return MakeError(ErrorCode::kIo, "it was not done after {} s", timeout.count());
  };
  std::string output;
  const auto status = RunProgram({"/bin/sh", "-c", command}, {}, &output, check);
  if (!status && status.error().what.empty() && status.error().code != ErrorCode::kCancelled) {
    return SystemError("/bin/sh", "cannot be run", status.error().error_number());
  }
  if (!status) return status.error();
  if (*status == 0) return output;
  if (*status > 0) return MakeError(ErrorCode::kIo, "it exited with {}", *status);
  return MakeError(ErrorCode::kIo, "signal {} ended it", -*status);
}

}  // namespace weightfs::s3
