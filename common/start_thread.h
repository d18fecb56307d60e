// SPDX-License-Identifier: Apache-2.0
// Threads of weightfs in a process whose signals belong to its other threads.
#pragma once

#include <csignal>
#include <functional>
#include <thread>

#include "common/result.h"

namespace weightfs {

// While it lives the calling thread, and each thread that it makes, takes no signal but `except` (0: none at all).
class SignalsBlocked {
 public:
  explicit SignalsBlocked(int except = 0);
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

// Starts a thread that takes no signals. `name` is at most 15 characters long; /proc shows it. kAgain when the system
// has no room for another thread.
Result<std::thread> StartThread(const char* name, std::function<void()> run);

}  // namespace weightfs
