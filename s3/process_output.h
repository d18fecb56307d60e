// SPDX-License-Identifier: Apache-2.0
// The output of a command of the user, for credential_process.
#pragma once

#include <atomic>
#include <chrono>

#include "common/error.h"

namespace weightfs::s3 {

// Runs `command` with /bin/sh and returns its standard output, at most 1 MiB. Its standard error is that of this
// process. Fails with kIo if it exits with an error or is not done after `timeout`, and with kCancelled soon after
// `cancelled` becomes true; in both cases the command is killed. The error does not contain the output.
Result<std::string> ProcessOutput(const std::string& command, std::chrono::seconds timeout,
                                  const std::atomic<bool>& cancelled);

}  // namespace weightfs::s3
