// SPDX-License-Identifier: Apache-2.0
// A few threads for operations that may wait for the device, so that the receiving threads go on receiving.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/mutex.h"

namespace weightfs {

// Thread-safe. Tasks must not throw.
class Executor {
 public:
  Executor(unsigned threads, size_t queue_limit);
  // Runs what is queued, then stops.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Runs the task on a thread of the pool; on the caller's own when the queue is full, which slows the caller down to
  // what the pool gets done.
  void Run(std::function<void()> task) EXCLUDES(mutex_);

  // The same, never on the caller's thread; the caller bounds how many there are.
  void RunElsewhere(std::function<void()> task) EXCLUDES(mutex_);

 private:
  void Work() EXCLUDES(mutex_);

  const size_t queue_limit_;
  Mutex mutex_;
  std::condition_variable queued_;
  std::deque<std::function<void()>> queue_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace weightfs
