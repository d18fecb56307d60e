// SPDX-License-Identifier: Apache-2.0
// The signals that end a command, available as a flag for commands that must clean up or stop early.
#pragma once

#include <atomic>
#include <vector>

namespace weightfs::cli {

// Returns SIGINT, SIGTERM and SIGHUP, except those that this process was started to ignore (nohup, a script's
// background process).
std::vector<int> EndSignals();

// From now on these signals no longer end the process but set the returned flag.
const std::atomic<bool>& CatchInterrupts();

}  // namespace weightfs::cli
