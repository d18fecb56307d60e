// SPDX-License-Identifier: Apache-2.0
#include "fs/executor.h"

#include <pthread.h>

#include <utility>

namespace weightfs {

Executor::Executor(unsigned threads, size_t queue_limit) : queue_limit_(queue_limit) {
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

void Executor::Run(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    if (queue_.size() < queue_limit_) {
      queue_.push_back(std::move(task));
      task = nullptr;
    }
  }
  if (task) {
    task();
  } else {
    queued_.notify_one();
  }
}

void Executor::RunElsewhere(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(task));
  }
  queued_.notify_one();
}

void Executor::Work() {
  MutexLock lock(mutex_);
  while (true) {
    while (queue_.empty() && !stopping_) queued_.wait(lock.native());
    if (queue_.empty()) return;
    std::function<void()> task = std::move(queue_.front());
    queue_.pop_front();
    lock.Unlock();
    task();
    task = nullptr;  // destroy the task's captures before locking again
    lock.Lock();
  }
}

}  // namespace weightfs
