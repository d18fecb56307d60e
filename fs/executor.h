// SPDX-License-Identifier: Apache-2.0
// A small thread pool for operations that may wait for a device, so that the receivers keep receiving.
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
  // Runs the queued tasks, then stops.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Runs the task on a thread of the pool. When the queue is full, runs it on the calling thread, which limits callers
  // to the throughput of the pool.
  void Run(std::function<void()> task) EXCLUDES(mutex_);

  // Same, but never on the calling thread. The caller must limit the number of tasks.
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
