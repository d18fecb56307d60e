// SPDX-License-Identifier: Apache-2.0
// A thread that handles the signals of a mount: those meaning "end cleanly", and SIGHUP.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::cli {

// Blocks EndSignals() (cli/interrupt.h), and always SIGTERM, in the calling thread and in the threads it creates later,
// so that only SignalThread receives them. Without `hangup_ends`, SIGHUP means "open the log again", and is received
// even if the caller ignores it. Must be called before any other thread is created.
void BlockEndSignals(bool hangup_ends);

// Calls `on_signal`, on its own thread, for each of these signals as long as this object lives.
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
  const UniqueFd wake_;     // eventfd by which the destructor stops the thread
  const std::function<void(int)> on_signal_;
  std::thread thread_;
};

}  // namespace weightfs::cli
