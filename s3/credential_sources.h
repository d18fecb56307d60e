// SPDX-License-Identifier: Apache-2.0
// The places where credentials are looked for; credentials.h has their order.
#pragma once

#include "s3/credentials.h"

namespace weightfs::s3 {

// Loads from the first place that has credentials. Blocks. Fails with kCancelled soon after `interrupted` returns true.
// Thread-safe.
Result<Credentials> LoadCredentials(const Settings& settings, const Environment& environment,
                                    const Interrupted& interrupted);

// Runs `command` with /bin/sh and returns its standard output, at most 1 MiB. Its standard error is that of this
// process. Fails with kIo if it exits with an error or is not done after `timeout`, and with kCancelled soon after
// `interrupted` returns true; in both cases the command is killed. The error does not contain the output.
Result<std::string> ProcessOutput(const std::string& command, std::chrono::seconds timeout,
                                  const Interrupted& interrupted = {});

}  // namespace weightfs::s3
