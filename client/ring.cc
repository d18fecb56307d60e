// SPDX-License-Identifier: Apache-2.0
#include "client/ring.h"

#include <utility>

#include "common/assert.h"
#include "common/result.h"
#include "common/start_thread.h"

namespace weightfs::client {

Result<std::shared_ptr<Ring>> Ring::Create(const PipelineOptions& options) {
  ASSIGN_OR_RETURN(auto pipeline, Pipeline::Create(options));
  std::shared_ptr<Ring> ring(new Ring(std::move(pipeline)));
  // The thread keeps the ring alive, because Stop may be called on this thread.
  ASSIGN_OR_RETURN(ring->thread_, StartThread("weightfs-io", [ring] { ring->Run(); }));
  return ring;
}

void Ring::BeginStop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void Ring::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  const bool inside = driven_ && driver_ == std::this_thread::get_id();
  if (inside) {
    // Called in a callback, so no other thread can drive. After this nothing is in flight, and the enclosing loop ends.
    lock.Unlock();
    if (pipeline_->completing()) {
      Drive(nullptr);
    } else {
      pipeline_->Drain();
    }
    WEIGHTFS_ASSERT(thread_.get_id() == std::this_thread::get_id());
    return thread_.detach();
  }
  changed_.notify_all();
  lock.Unlock();
  thread_.join();
}

void Ring::Enqueue(std::shared_ptr<Operation> operation, uint64_t begin, uint64_t end, bool wake) {
  MutexLock lock(mutex_);
  queue_.push_back({std::move(operation), begin, end});
  if (driven_ && driver_ != std::this_thread::get_id()) {
    if (std::exchange(sleeps_, false)) pipeline_->Wake();
  } else if (wake && !driven_) {
    changed_.notify_all();
  }
}

void Ring::Help(const Operation& operation, std::chrono::nanoseconds limit) {
  MutexLock lock(mutex_);
  if (driven_) return;
  driven_ = true;
  driver_ = std::this_thread::get_id();
  lock.Unlock();
  Drive(&operation, limit);
  lock.Lock();
  driven_ = false;
  work_left_ = !pipeline_->idle();
  const bool hand_over = work_left_ || !queue_.empty() || stopping_;
  lock.Unlock();
  if (hand_over) changed_.notify_all();
}

void Ring::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (driven_ || (queue_.empty() && !work_left_ && !stopping_)) changed_.wait(lock.native());
    if (queue_.empty() && !work_left_) break;
    driven_ = true;
    driver_ = std::this_thread::get_id();
    work_left_ = false;
    lock.Unlock();
    Drive(nullptr);
    lock.Lock();
    driven_ = false;
  }
  lock.Unlock();
  // Destroyed here rather than in the destructor: the kernel needs tens of milliseconds, which all rings of a handle
  // then spend concurrently.
  pipeline_.reset();
}

void Ring::Drive(const Operation* until, std::chrono::nanoseconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto end = until != nullptr ? Clock::now() + limit : Clock::time_point::max();
  for (;;) {
    TakeQueued();
    pipeline_->Fill();
    if (until != nullptr && (until->done() || Clock::now() >= end)) return;
    if (pipeline_->busy()) {
      AwaitProgress(until != nullptr ? std::optional(limit) : std::nullopt);
      continue;
    }
    MutexLock lock(mutex_);
    if (queue_.empty()) return;
  }
}

// A newly queued slice ends the wait.
void Ring::AwaitProgress(std::optional<std::chrono::nanoseconds> limit) {
  {
    const MutexLock lock(mutex_);
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
