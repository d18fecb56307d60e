// SPDX-License-Identifier: Apache-2.0
// A small thread pool for operations that may wait, so that the receivers keep receiving.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"

namespace weightfs {

// Runs tasks on its threads, those of one user in their order, and those of several users in turns. A user who queues
// many tasks thus delays only their own. Thread-safe. Tasks must not throw.
class Executor {
 public:
  // A user may occupy all threads but `kept_free`, which remain for others.
  explicit Executor(unsigned threads, unsigned kept_free = 0);
  // Runs the queued tasks, then stops.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Never runs the task on the calling thread. The caller bounds the number of tasks.
  void Run(uint32_t user, std::function<void()> task) EXCLUDES(mutex_);

 private:
  struct User {
    std::deque<std::function<void()>> queue;
    unsigned running = 0;
    bool in_turn = false;  // listed in turns_
  };
  void Work() EXCLUDES(mutex_);
  // Moves the user who is served next out of turns_. Returns false when no task may start.
  bool TakeTurnLocked(uint32_t* user) REQUIRES(mutex_);
  void QueueTurnLocked(uint32_t user) REQUIRES(mutex_);

  const unsigned most_of_one_;  // threads that one user may occupy
  Mutex mutex_;
  std::condition_variable queued_;
  std::unordered_map<uint32_t, User> users_ GUARDED_BY(mutex_);  // with tasks, queued or running
  std::deque<uint32_t> turns_ GUARDED_BY(mutex_);  // users with queued tasks who do not occupy their most threads
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace weightfs
