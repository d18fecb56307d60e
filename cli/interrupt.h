// SPDX-License-Identifier: Apache-2.0
// SIGINT, SIGTERM and SIGHUP as a flag, for commands that take back or leave off what they began.
#pragma once

#include <atomic>

namespace weightfs::cli {

// From now on these signals set the flag that is returned instead of ending the process.
const std::atomic<bool>& CatchInterrupts();

}  // namespace weightfs::cli
