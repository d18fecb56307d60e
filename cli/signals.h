// SPDX-License-Identifier: Apache-2.0
// The signals of this process: those that end a command, those of a mount, and faults.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "common/result.h"

namespace weightfs::cli {

// Returns SIGINT, SIGTERM and SIGHUP, except those that this process was started to ignore (nohup, a script's
// background process).
std::vector<int> EndSignals();

// From now on these signals no longer end the process but set the returned flag, for commands that must clean up or
// stop early.
const std::atomic<bool>& CatchInterrupts();

// Blocks EndSignals(), and always SIGTERM, in the calling thread and in the threads it creates later, so that only
// SignalThread receives them. Without `hangup_ends`, SIGHUP means "open the log again", and is received even if the
// caller ignores it. Must be called before any other thread is created.
void BlockEndSignals(bool hangup_ends);

// Calls `on_signal`, on its own thread, for each of these signals as long as this object lives. BlockEndSignals must
// have been called.
class SignalThread {
 public:
  SignalThread() = default;
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

  // Call it once. kAgain: there is no thread.
  Result<void> Start(std::function<void(int signal)> on_signal);

 private:
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

// Installs handlers for SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT. They write the signal's name and a backtrace to
// standard error and then let the signal end the process as usual. Must be called once, before any thread is created.
void ReportCrashes();

}  // namespace weightfs::cli
