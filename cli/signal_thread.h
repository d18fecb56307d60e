// SPDX-License-Identifier: Apache-2.0
// Signals that mean "end cleanly", taken by a thread of their own.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::cli {

// Blocks EndSignals() (cli/interrupt.h), and SIGTERM in any case, in the calling thread and those it makes later, so
// that only SignalThread sees them. Before any other thread is made.
void BlockEndSignals();

// Calls `on_signal` (from its thread) with each of these signals for as long as it lives.
class SignalThread {
 public:
  static Result<std::unique_ptr<SignalThread>> Start(std::function<void(int signal)> on_signal);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  SignalThread(UniqueFd signals, UniqueFd wake, std::function<void(int)> on_signal);
  void Run();

  const UniqueFd signals_;  // signalfd
  const UniqueFd wake_;     // eventfd: the destructor ends the thread
  const std::function<void(int)> on_signal_;
  std::thread thread_;
};

}  // namespace weightfs::cli
