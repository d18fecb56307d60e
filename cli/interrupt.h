// SPDX-License-Identifier: Apache-2.0
// The signals that end a command, and as a flag for commands that take back or leave off what they began.
#pragma once

#include <atomic>
#include <vector>

namespace weightfs::cli {

// SIGINT, SIGTERM and SIGHUP, without those that this process was started to ignore (nohup, the background of a
// script).
std::vector<int> EndSignals();

// From now on these signals set the flag that is returned instead of ending the process.
const std::atomic<bool>& CatchInterrupts();

}  // namespace weightfs::cli
