// SPDX-License-Identifier: Apache-2.0
#include "fs/executor.h"

#include <algorithm>

#include "common/start_thread.h"

namespace weightfs {
namespace {

// A thread that was added to the first ones ends after so long without a task.
constexpr std::chrono::seconds kIdle{1};
// Beyond so many threads, users wait for each other's tasks.
constexpr size_t kMostThreads = 128;

}  // namespace

Result<void> Executor::Start() {
  MutexLock lock(mutex_);
  for (unsigned i = 0; i < threads_of_user_; ++i) RETURN_IF_ERROR(StartThreadLocked());
  return {};
}

Executor::~Executor() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;  // from here on, no thread starts and none moves to ended_
  }
  queued_.notify_all();
  for (auto* threads : {&threads_, &ended_}) {
    for (std::thread& thread : *threads) thread.join();
  }
}

void Executor::Run(uint32_t user, std::function<void()> task) {
  MutexLock lock(mutex_);
  users_[user].queue.push_back(std::move(task));
  QueueTurnLocked(user);
  WakeOneLocked();
}

void Executor::RunAfter(std::chrono::milliseconds pause, uint32_t user, std::function<void()> task) {
  MutexLock lock(mutex_);
  paused_.emplace(Clock::now() + pause, std::pair(user, std::move(task)));
  WakeOneLocked();
}

void Executor::QueueTurnLocked(uint32_t user) {
  User& entry = users_[user];
  if (entry.in_turn || entry.queue.empty() || entry.running >= threads_of_user_) return;
  entry.in_turn = true;
  turns_.push_back(user);
}

void Executor::QueueDueLocked() {
  const auto now = Clock::now();
  while (!paused_.empty() && (stopping_ || paused_.begin()->first <= now)) {
    auto [user, task] = std::move(paused_.begin()->second);
    paused_.erase(paused_.begin());
    users_[user].queue.push_back(std::move(task));
    QueueTurnLocked(user);
  }
}

// Call this when there is more to do, or when the calling thread stops waiting: one thread waits while a task is
// paused.
void Executor::WakeOneLocked() {
  if (turns_.empty() && paused_.empty()) return;
  queued_.notify_one();
  if (stopping_ || threads_.size() >= kMostThreads) return;
  const auto has_no_thread = [this](uint32_t user) REQUIRES(mutex_) { return users_[user].running == 0; };
  const bool waits = turns_.size() > idle_ && std::any_of(turns_.begin(), turns_.end(), has_no_thread);
  if (!waits && (idle_ > 0 || paused_.empty())) return;
  // Without another thread, the task waits for one of the others.
  static_cast<void>(StartThreadLocked().has_value());
}

Result<void> Executor::StartThreadLocked() {
  for (; !ended_.empty(); ended_.pop_front()) ended_.front().join();
  const auto self = threads_.emplace(threads_.end());
  auto thread = StartThread("weightfs-work", [this, self] { Work(self); });
  if (!thread) {
    threads_.erase(self);
    return thread.error();
  }
  *self = *std::move(thread);
  return {};
}

void Executor::Work(std::list<std::thread>::iterator self) {
  MutexLock lock(mutex_);
  while (true) {
    QueueDueLocked();
    if (!turns_.empty()) {
      RunTurnLocked(lock);
      continue;
    }
    // A user's remaining tasks wait for one that is running, and its thread runs them.
    if (stopping_) return;
    const bool added = threads_.size() > threads_of_user_;
    const auto end = added ? Clock::now() + kIdle : Clock::time_point::max();
    const auto until = paused_.empty() ? end : std::min(end, paused_.begin()->first);
    ++idle_;
    if (until == Clock::time_point::max()) {
      queued_.wait(lock.native());
    } else {
      queued_.wait_until(lock.native(), until);
    }
    --idle_;
    const bool needed = stopping_ || !turns_.empty() || !paused_.empty() || threads_.size() <= threads_of_user_;
    if (needed || Clock::now() < end) continue;
    ended_.splice(ended_.end(), threads_, self);
    return;
  }
}

void Executor::RunTurnLocked(MutexLock& lock) {
  const uint32_t user = turns_.front();
  turns_.pop_front();
  User& entry = users_[user];  // stays while it has a running task
  entry.in_turn = false;
  std::function<void()> task = std::move(entry.queue.front());
  entry.queue.pop_front();
  ++entry.running;
  QueueTurnLocked(user);
  WakeOneLocked();
  lock.Unlock();
  task();
  task = nullptr;  // destroy the task's captures before locking again
  lock.Lock();
  --entry.running;
  QueueTurnLocked(user);
  if (entry.running == 0 && entry.queue.empty()) users_.erase(user);
}

}  // namespace weightfs
