// SPDX-License-Identifier: Apache-2.0
#include "fs/executor.h"

#include <pthread.h>

#include <utility>

namespace weightfs {

Executor::Executor(unsigned threads, unsigned kept_free) : most_of_one_(threads - kept_free) {
  threads_.reserve(threads);
  for (unsigned i = 0; i < threads; ++i) {
    threads_.emplace_back([this] {
      pthread_setname_np(pthread_self(), "weightfs-work");
      Work();
    });
  }
}

Executor::~Executor() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  queued_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Executor::Run(uint32_t user, std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    users_[user].queue.push_back(std::move(task));
    QueueTurnLocked(user);
  }
  queued_.notify_one();
}

void Executor::QueueTurnLocked(uint32_t user) {
  User& entry = users_[user];
  if (entry.in_turn || entry.queue.empty() || entry.running >= most_of_one_) return;
  entry.in_turn = true;
  turns_.push_back(user);
}

bool Executor::TakeTurnLocked(uint32_t* user) {
  if (turns_.empty()) return false;
  *user = turns_.front();
  turns_.pop_front();
  users_[*user].in_turn = false;
  return true;
}

void Executor::Work() {
  MutexLock lock(mutex_);
  while (true) {
    uint32_t user = 0;
    while (!TakeTurnLocked(&user)) {
      // A user's remaining tasks wait for one that is running, and its thread runs them.
      if (stopping_) return;
      queued_.wait(lock.native());
    }
    User& entry = users_[user];  // stays while it has a running task
    std::function<void()> task = std::move(entry.queue.front());
    entry.queue.pop_front();
    ++entry.running;
    QueueTurnLocked(user);
    lock.Unlock();
    task();
    task = nullptr;  // destroy the task's captures before locking again
    lock.Lock();
    --entry.running;
    QueueTurnLocked(user);
    if (entry.running == 0 && entry.queue.empty()) users_.erase(user);
  }
}

}  // namespace weightfs
