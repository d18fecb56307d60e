// SPDX-License-Identifier: Apache-2.0
// Threads for calls that may block: opens and ends of files, callbacks of the program, transfers by cuFile.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "common/result.h"

namespace weightfs::client {

// Thread-safe. Tasks must not throw. They begin in order: at once, or with a `patience` when no task runs that has run
// for less than that. So one thread runs short tasks one after the other, and tasks that block hold up the others only
// for the patience, until the maximum number of threads is blocked.
class Workers {
 public:
  // `name`: of the threads, at most 15 characters, a literal. `most`: the maximum number of threads.
  Workers(const char* name, size_t most, std::chrono::milliseconds patience = {});
  ~Workers() { Stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Starts the first thread, if there is none. EAGAIN.
  Result<void> Start();
  // Runs the task on one of the threads, or on the calling one if there is none and the system cannot create one.
  void Run(std::function<void()> task);
  // Returns when all tasks have run. In a task it returns at once, and the threads end when all tasks have run.
  void Stop();

 private:
  class State;
  const std::shared_ptr<State> state_;  // shared with the threads
};

}  // namespace weightfs::client
