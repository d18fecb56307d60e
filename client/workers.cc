// SPDX-License-Identifier: Apache-2.0
#include "client/workers.h"

#include <condition_variable>
#include <deque>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/start_thread.h"

namespace weightfs::client {

using Clock = std::chrono::steady_clock;

class Workers::State : public std::enable_shared_from_this<State> {
 public:
  State(const char* name, size_t most, std::chrono::milliseconds patience)
      : name_(name), most_(most), patience_(patience) {}

  Result<void> Start() EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return count_ == 0 ? StartLocked() : Result<void>();
  }
  void Run(std::function<void()> task) EXCLUDES(mutex_);
  void Stop() EXCLUDES(mutex_);

 private:
  // A thread that has no task. Each has a condition of its own, so that a notification reaches the right one.
  struct Waiter {
    std::condition_variable changed;
    bool idle = false;
  };

  void Work() EXCLUDES(mutex_);
  Result<void> StartLocked() REQUIRES(mutex_);
  // Provides a thread for the tasks in the queue, if no other is going to look at them in time.
  void WatchQueueLocked() REQUIRES(mutex_);
  void WakeLocked(Waiter& waiter) REQUIRES(mutex_) {
    waiter.idle = false;
    waiter.changed.notify_one();
  }
  void WakeAllLocked() REQUIRES(mutex_) {
    for (Waiter* waiter : std::exchange(idle_, {})) WakeLocked(*waiter);
    if (watcher_ != nullptr) WakeLocked(*watcher_);
  }

  const char* const name_;
  const size_t most_;
  const std::chrono::milliseconds patience_;
  Mutex mutex_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  std::vector<Waiter*> idle_ GUARDED_BY(mutex_);
  Waiter* watcher_ GUARDED_BY(mutex_) = nullptr;  // waits until the tasks in the queue have waited long enough
  std::list<Clock::time_point> running_ GUARDED_BY(mutex_);  // the starts of the running tasks, in their order
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool detached_ GUARDED_BY(mutex_) = false;
  size_t count_ GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);  // not detached, and not being joined
  static thread_local const State* of_thread_;
};

thread_local const Workers::State* Workers::State::of_thread_ = nullptr;

Result<void> Workers::State::StartLocked() {
  ASSIGN_OR_RETURN(auto thread, StartThread(name_, [self = shared_from_this()] { self->Work(); }));
  ++count_;
  if (detached_) {
    thread.detach();
  } else {
    threads_.push_back(std::move(thread));
  }
  return {};
}

void Workers::State::WatchQueueLocked() {
  if (tasks_.empty()) return;
  if (watcher_ != nullptr) {
    if (running_.empty()) WakeLocked(*watcher_);
  } else if (!idle_.empty()) {
    WakeLocked(*idle_.back());
    idle_.pop_back();
  } else if (running_.size() == count_ && count_ < most_) {
    [[maybe_unused]] const auto started = StartLocked();
  }
}

void Workers::State::Run(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  WatchQueueLocked();
  if (count_ > 0) return;
  task = std::move(tasks_.back());
  tasks_.pop_back();
  lock.Unlock();
  task();
}

void Workers::State::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  detached_ = detached_ || of_thread_ == this;
  WakeAllLocked();
  // A task may need another thread meanwhile.
  while (!threads_.empty()) {
    auto threads = std::exchange(threads_, {});
    const bool detach = detached_;
    lock.Unlock();
    for (std::thread& thread : threads) detach ? thread.detach() : thread.join();
    lock.Lock();
  }
}

void Workers::State::Work() {
  of_thread_ = this;
  Waiter self;
  MutexLock lock(mutex_);
  while (!tasks_.empty() || !stopping_) {
    const auto due = running_.empty() ? Clock::time_point::min() : running_.back() + patience_;
    if (tasks_.empty() || (watcher_ != nullptr && Clock::now() < due)) {
      self.idle = true;
      idle_.push_back(&self);
      while (self.idle) self.changed.wait(lock.native());
      continue;
    }
    if (Clock::now() < due) {
      watcher_ = &self;
      self.changed.wait_until(lock.native(), due);
      watcher_ = nullptr;
      continue;
    }
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    const auto started = running_.insert(running_.end(), Clock::now());
    WatchQueueLocked();
    lock.Unlock();
    task();
    task = nullptr;  // destroys its captures without the lock
    lock.Lock();
    running_.erase(started);
  }
  --count_;
  WakeAllLocked();  // those that found tasks in the queue when Stop woke them
}

Workers::Workers(const char* name, size_t most, std::chrono::milliseconds patience)
    : state_(std::make_shared<State>(name, most, patience)) {}

Result<void> Workers::Start() { return state_->Start(); }
void Workers::Run(std::function<void()> task) { state_->Run(std::move(task)); }
void Workers::Stop() { state_->Stop(); }

}  // namespace weightfs::client
