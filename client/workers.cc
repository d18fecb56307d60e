// SPDX-License-Identifier: Apache-2.0
#include "client/workers.h"

#include <utility>

#include "common/start_thread.h"

namespace weightfs::client {

Result<void> Workers::Start() {
  const MutexLock lock(mutex_);
  return threads_.empty() ? StartLocked() : Result<void>();
}

Result<void> Workers::StartLocked() {
  ASSIGN_OR_RETURN(auto thread, StartThread(name_, [this] { Work(); }));
  threads_.push_back(std::move(thread));
  return {};
}

void Workers::Run(std::function<void()> task) {
  const MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  // Without another thread, the task waits for one of those that there are.
  if (tasks_.size() > idle_ && threads_.size() < most_) [[maybe_unused]]
    const auto started = StartLocked();
  changed_.notify_one();
}

void Workers::Stop() {
  std::vector<std::thread> threads;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void Workers::Work() {
  MutexLock lock(mutex_);
  for (;;) {
    ++idle_;
    while (tasks_.empty() && !stopping_) changed_.wait(lock.native());
    --idle_;
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.Unlock();
    task();
    task = nullptr;  // destroys its captures without the lock
    lock.Lock();
  }
}

}  // namespace weightfs::client
