// SPDX-License-Identifier: Apache-2.0
// Threads of weightfs in a process whose other threads handle the signals.
#pragma once

#include <functional>
#include <thread>

#include "common/result.h"

namespace weightfs {

// Starts a thread with all signals blocked, except `except` (0: no exception). `name` has at most 15 characters and is
// visible in /proc. Returns kAgain when the system cannot create another thread.
Result<std::thread> StartThread(const char* name, std::function<void()> run, int except = 0);

}  // namespace weightfs
