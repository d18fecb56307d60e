// SPDX-License-Identifier: Apache-2.0
// A thread pool for operations that may wait, so that the receivers keep receiving.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>

#include "common/mutex.h"
#include "common/result.h"

namespace weightfs {

// Runs the tasks of one user in their order on at most `threads_of_user` threads at a time, and those of several users
// in turns. The pool has that many threads, and gets another one when all are busy and a user has none: a user whose
// tasks wait delays only their own. Thread-safe. Tasks must not throw.
class Executor {
 public:
  explicit Executor(unsigned threads_of_user) : threads_of_user_(threads_of_user) {}
  // Starts the threads; call it once, before the others. kAgain: there are too few of them.
  Result<void> Start() EXCLUDES(mutex_);
  // Runs the tasks, those of RunAfter at once, then stops.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Never runs the task on the calling thread. The caller bounds the number of tasks.
  void Run(uint32_t user, std::function<void()> task) EXCLUDES(mutex_);
  // Same, after a pause that occupies no thread.
  void RunAfter(std::chrono::milliseconds pause, uint32_t user, std::function<void()> task) EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  struct User {
    std::deque<std::function<void()>> queue;
    unsigned running = 0;
    bool in_turn = false;  // listed in turns_
  };
  void Work(std::list<std::thread>::iterator self) EXCLUDES(mutex_);
  void RunTurnLocked(MutexLock& lock) REQUIRES(mutex_);
  void QueueTurnLocked(uint32_t user) REQUIRES(mutex_);
  void QueueDueLocked() REQUIRES(mutex_);
  void WakeOneLocked() REQUIRES(mutex_);
  Result<void> StartThreadLocked() REQUIRES(mutex_);

  const unsigned threads_of_user_;
  Mutex mutex_;
  std::condition_variable queued_;
  std::unordered_map<uint32_t, User> users_ GUARDED_BY(mutex_);  // with tasks, queued or running
  std::deque<uint32_t> turns_ GUARDED_BY(mutex_);  // users with queued tasks who do not occupy their most threads
  std::multimap<Clock::time_point, std::pair<uint32_t, std::function<void()>>> paused_ GUARDED_BY(mutex_);  // by end
  bool stopping_ GUARDED_BY(mutex_) = false;
  size_t idle_ GUARDED_BY(mutex_) = 0;  // threads that wait
  std::list<std::thread> threads_ GUARDED_BY(mutex_), ended_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
