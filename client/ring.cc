// SPDX-License-Identifier: Apache-2.0
#include "client/ring.h"

#include <utility>

#include "common/result.h"
#include "common/start_thread.h"

namespace weightfs::client {
namespace {

thread_local const Ring* ring_of_thread = nullptr;

}  // namespace

Result<std::shared_ptr<Ring>> Ring::Create(const PipelineOptions& options) {
  ASSIGN_OR_RETURN(auto pipeline, Pipeline::Create(options));
  std::shared_ptr<Ring> ring(new Ring(std::move(pipeline)));
  // One to drive, and one for tasks. Without both, operations would not end.
  for (int i = 0; i < 2; ++i) {
    MutexLock lock(ring->mutex_);
    auto started = ring->StartThreadLocked();
    lock.Unlock();
    if (started.has_value()) continue;
    ring->Stop();
    return std::move(started).error();
  }
  return ring;
}

Result<void> Ring::StartThreadLocked() {
  if (threads_.size() == kMostThreads) return Error{ErrorCode::kAgain, "the ring has its threads"};
  // The thread keeps the ring alive, because Stop may be called on this thread.
  ASSIGN_OR_RETURN(auto thread, StartThread("weightfs-io", [self = shared_from_this()] { self->Work(); }));
  threads_.push_back(std::move(thread));
  return {};
}

void Ring::BeginStop() {
  const MutexLock lock(mutex_);
  stopping_ = true;
  for (auto* thread : idle_) thread->notify_one();
}

void Ring::Stop() {
  BeginStop();
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    threads = std::exchange(threads_, {});
  }
  for (std::thread& thread : threads) {
    thread.get_id() == std::this_thread::get_id() ? thread.detach() : thread.join();
  }
}

void Ring::Enqueue(std::shared_ptr<Operation> operation, uint64_t begin, uint64_t end, bool wake) {
  MutexLock lock(mutex_);
  if (pipeline_ == nullptr) {  // the ring has ended
    lock.Unlock();
    operation->Fail(operation->Cancellation());
    if (operation->SliceDone() && operation->Complete()) operation->RunCallbacks();
    return;
  }
  queue_.push_back({std::move(operation), begin, end});
  if (driven_) {
    if (std::exchange(sleeps_, false)) pipeline_->Wake();
  } else if (wake) {
    WakeOneLocked();
  }
}

bool Ring::Help(const Operation& operation, std::chrono::nanoseconds limit) {
  MutexLock lock(mutex_);
  if (driven_ || stopping_) {
    // The caller did not wake anybody for its operation.
    if (NeedsDriverLocked()) WakeOneLocked();
    return false;
  }
  driven_ = true;
  lock.Unlock();
  const bool ended = Drive(&operation, limit);
  lock.Lock();
  driven_ = false;
  work_left_ = pipeline_->busy();
  if (NeedsDriverLocked() || WaitsLocked() || stopping_) WakeOneLocked();
  return ended;
}

void Ring::End(const std::shared_ptr<Operation>& operation) {
  if (WriteEdges(*operation)) Post(calls_, [this, operation] { Report(operation); });
  if (!operation->Complete()) return;
  if (ring_of_thread != this) return operation->RunCallbacks();
  Post(calls_, [operation] { operation->RunCallbacks(); });
}

void Ring::Report(const std::shared_ptr<Operation>& operation) {
  if (operation->Report()) Run([this, operation] { End(operation); });
}

void Ring::Post(Tasks& queue, std::function<void()> task) {
  AddTask(queue, std::move(task));
  // A thread that ends an operation takes what that brings itself.
  if (ring_of_thread == this && !Operation::CallbackScope::active()) return;
  const MutexLock lock(mutex_);
  WakeForTaskLocked();
}

void Ring::AddTask(Tasks& queue, std::function<void()> task) {
  const MutexLock lock(mutex_);
  queue.push_back(std::move(task));
}

void Ring::WakeForTaskLocked() {
  if (!WaitsLocked()) return;
  if (WakeOneLocked()) return;
  if (ring_of_thread == this) {
    // After BeginStop nobody would join it; this thread takes what is left.
    if (!stopping_) static_cast<void>(StartThreadLocked().has_value());
  } else if (std::exchange(sleeps_, false)) {
    pipeline_->Wake();  // the driver, to start a thread
  }
}

// The one that has been idle for the shortest time: it may not even sleep yet. If it has been woken already, it takes
// what there is by now, and wakes another one for the rest.
bool Ring::WakeOneLocked() {
  if (idle_.empty()) return false;
  idle_.back()->notify_one();
  return true;
}

bool Ring::TakeTask(MutexLock& lock) {
  if (!WaitsLocked()) return false;
  // When the ring stops, nothing is left to drive.
  const size_t free = threads_.size() - working_ - (calling_ ? 1 : 0);
  if (!stopping_ && free == 1 && !StartThreadLocked().has_value()) return false;
  const bool is_call = CallWaitsLocked();
  Tasks& queue = is_call ? calls_ : tasks_;
  auto task = std::move(queue.front());
  queue.pop_front();
  if (is_call) {
    calling_ = true;
  } else {
    ++working_;
  }
  WakeForTaskLocked();
  lock.Unlock();
  task();
  task = nullptr;  // destroys its captures without the lock
  lock.Lock();
  if (is_call) {
    calling_ = false;
  } else {
    --working_;
  }
  return true;
}

void Ring::Work() {
  ring_of_thread = this;
  std::condition_variable changed;
  MutexLock lock(mutex_);
  while (!HasEndedLocked()) {
    if (NeedsDriverLocked()) {
      driven_ = true;
      work_left_ = false;
      lock.Unlock();
      Drive(nullptr);
      lock.Lock();
      driven_ = false;
    } else if (!TakeTask(lock)) {
      idle_.push_back(&changed);
      changed.wait(lock.native());
      std::erase(idle_, &changed);
    }
  }
  const auto pipeline = std::move(pipeline_);
  WakeOneLocked();
  lock.Unlock();
  // The pipeline is destroyed here rather than in the destructor: the kernel needs tens of milliseconds, which all
  // rings of a handle then spend concurrently.
}

bool Ring::Drive(const Operation* until, std::chrono::nanoseconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto end = until != nullptr ? Clock::now() + limit : Clock::time_point::max();
  for (;;) {
    TakeQueued();
    pipeline_->Fill();
    const bool ended = HandOver(until);
    if (until != nullptr && (ended || until->done() || Clock::now() >= end)) return ended;
    if (pipeline_->busy()) {
      AwaitProgress(until != nullptr ? std::optional(limit) : std::nullopt);
      continue;
    }
    const MutexLock lock(mutex_);
    if (queue_.empty()) return false;
    WakeForTaskLocked();
  }
}

bool Ring::HandOver(const Operation* until) {
  auto due = pipeline_->TakeDue();
  for (auto& operation : due.reports) {
    AddTask(calls_, [this, operation = std::move(operation)] { Report(operation); });
  }
  bool ended = false;
  for (auto& operation : due.ends) {
    if (operation.get() == until) {
      ended = true;
    } else if (!operation->EndsAtOnce()) {
      AddTask(tasks_, [this, operation = std::move(operation)] { End(operation); });
    } else if (operation->Complete()) {
      AddTask(calls_, [operation = std::move(operation)] { operation->RunCallbacks(); });
    }
  }
  return ended;
}

// A newly queued slice ends the wait.
void Ring::AwaitProgress(std::optional<std::chrono::nanoseconds> limit) {
  {
    const MutexLock lock(mutex_);
    WakeForTaskLocked();
    if (!queue_.empty()) return;
    sleeps_ = true;
  }
  pipeline_->AwaitProgress(limit);
  const MutexLock lock(mutex_);
  sleeps_ = false;
}

void Ring::TakeQueued() {
  MutexLock lock(mutex_);
  for (; !queue_.empty(); queue_.pop_front()) {
    Queued& queued = queue_.front();
    pipeline_->Add(std::move(queued.operation), queued.begin, queued.end);
  }
  if (!stopping_) return;
  lock.Unlock();
  pipeline_->Cancel();
}

}  // namespace weightfs::client
