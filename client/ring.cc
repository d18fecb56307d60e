// SPDX-License-Identifier: Apache-2.0
#include "client/ring.h"

#include <utility>

#include "common/result.h"
#include "common/start_thread.h"

namespace weightfs::client {

Result<std::unique_ptr<Ring>> Ring::Create(const PipelineOptions& options, const RunBlocking& run) {
  ASSIGN_OR_RETURN(auto pipeline, Pipeline::Create(options, run));
  std::unique_ptr<Ring> ring(new Ring(std::move(pipeline), run));
  ASSIGN_OR_RETURN(ring->thread_, StartThread("weightfs-io", [ring = ring.get()] { ring->Run(); }));
  return ring;
}

void Ring::StartEnd(std::shared_ptr<Operation> operation) const {
  run_(*operation, [operation] { End(*operation); });
}

void Ring::BeginStop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void Ring::Stop() {
  BeginStop();
  if (thread_.joinable()) thread_.join();
}

void Ring::Enqueue(std::shared_ptr<Operation> operation, uint64_t begin, uint64_t end, bool wake) {
  MutexLock lock(mutex_);
  if (stopping_) {
    lock.Unlock();
    operation->Fail(operation->Cancellation());
    if (operation->SliceDone()) StartEnd(std::move(operation));
    return;
  }
  queue_.push_back({std::move(operation), begin, end});
  if (driven_ && driver_ != std::this_thread::get_id()) {
    if (std::exchange(sleeps_, false)) pipeline_->Wake();
  } else if (wake && !driven_) {
    changed_.notify_all();
  }
}

bool Ring::Help(const Operation& operation, std::chrono::nanoseconds limit) {
  MutexLock lock(mutex_);
  if (driven_) return false;
  driven_ = true;
  driver_ = std::this_thread::get_id();
  lock.Unlock();
  const bool ended = Drive(&operation, limit);
  lock.Lock();
  driven_ = false;
  work_left_ = !pipeline_->idle();
  const bool hand_over = work_left_ || !queue_.empty() || stopping_;
  lock.Unlock();
  if (hand_over) changed_.notify_all();
  return ended;
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

bool Ring::Drive(const Operation* until, std::chrono::nanoseconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto end = until != nullptr ? Clock::now() + limit : Clock::time_point::max();
  for (;;) {
    TakeQueued();
    pipeline_->Fill();
    bool ended = false;
    for (auto& operation : pipeline_->TakeEnded()) {
      if (operation.get() == until) {
        ended = true;
      } else {
        StartEnd(std::move(operation));
      }
    }
    if (until != nullptr && (ended || until->done() || Clock::now() >= end)) return ended;
    if (pipeline_->busy()) {
      AwaitProgress(until != nullptr ? std::optional(limit) : std::nullopt);
      continue;
    }
    MutexLock lock(mutex_);
    if (queue_.empty()) return false;
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
