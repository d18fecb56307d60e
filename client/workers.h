// SPDX-License-Identifier: Apache-2.0
// Threads for calls that may block: transfers by cuFile.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"

namespace weightfs::client {

// Thread-safe. A thread is started when the others are busy, up to the maximum. Tasks must not throw.
class Workers {
 public:
  // `name`: of the threads, at most 15 characters, a literal.
  Workers(const char* name, size_t most) : name_(name), most_(most) {}
  ~Workers() { Stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Starts the first thread, if there is none. EAGAIN. Must succeed before the first Run.
  Result<void> Start() EXCLUDES(mutex_);
  // Runs the task on one of the threads.
  void Run(std::function<void()> task) EXCLUDES(mutex_);
  // Returns when all tasks have run. Not allowed in a task.
  void Stop() EXCLUDES(mutex_);

 private:
  void Work() EXCLUDES(mutex_);
  Result<void> StartLocked() REQUIRES(mutex_);

  const char* const name_;
  const size_t most_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  size_t idle_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
};

}  // namespace weightfs::client
