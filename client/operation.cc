// SPDX-License-Identifier: Apache-2.0
#include "client/operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <utility>

#include "client/lane.h"
#include "client/operation_plan.h"
#include "client/pending_ranges.h"
#include "common/assert.h"
#include "common/mutex.h"

namespace weightfs::client {
namespace {

thread_local int callback_depth = 0;

}  // namespace

struct Operation::State {
  explicit State(Plan made)
      : plan(std::move(made)),
        path(plan.target ? plan.target.access->path() : plan.path),
        offset(plan.offset),
        begun(!plan.held) {}

  Plan plan;
  const std::string path;
  Target first;  // the first target of an operation that was held
  std::atomic<uint64_t> offset;
  // Each thread that sets one of these reads the other afterwards.
  std::atomic<bool> begun;
  std::atomic<bool> stopped{false};
  std::atomic<bool> direct_refused{false};
  std::atomic<uint64_t> transferred{0};
  std::atomic<size_t> slices_left{0};
  Mutex progress_mutex;
  uint64_t noted GUARDED_BY(progress_mutex) = 0;            // the bytes of the last report
  std::deque<uint64_t> reports GUARDED_BY(progress_mutex);  // that `progress` has not returned from
  bool reporting GUARDED_BY(progress_mutex) = false;   // Report is due or runs
  bool completes GUARDED_BY(progress_mutex) = false;   // Complete waits for the report
  Mutex mutex;
  std::condition_variable ended;
  bool completing GUARDED_BY(mutex) = false;  // the outcome is being determined, so Fail has no effect
  bool cancel_requested GUARDED_BY(mutex) = false;  // Cancel has returned true
  std::vector<Edge> edges GUARDED_BY(mutex);
  bool done GUARDED_BY(mutex) = false;
  std::optional<Error> error GUARDED_BY(mutex);
  std::vector<std::function<void()>> callbacks GUARDED_BY(mutex);
};

Operation::Operation(Plan plan) : state_(std::make_unique<State>(std::move(plan))) {}
Operation::~Operation() = default;

Operation::Direction Operation::direction() const { return state_->plan.direction; }
const Layout& Operation::layout() const { return state_->plan.target.layout(); }
const Access& Operation::access() const { return *state_->plan.target.access; }
const MemoryView& Operation::memory() const { return state_->plan.memory; }
const std::shared_ptr<DeviceMemory>& Operation::device() const { return state_->plan.device; }
uint64_t Operation::offset() const { return state_->offset.load(std::memory_order_relaxed); }
void Operation::Adopt(Target target, uint64_t offset) {
  WEIGHTFS_ASSERT(state_->plan.held && state_->begun.load());
  state_->first = std::exchange(state_->plan.target, std::move(target));
  state_->offset.store(offset, std::memory_order_relaxed);
  state_->plan.held = false;
}
bool Operation::Begin() {
  state_->begun.store(true);
  return !state_->stopped.load();
}
bool Operation::stable() const { return state_->plan.stable; }
bool Operation::begun() const { return state_->begun.load(); }
uint64_t Operation::size() const { return state_->plan.memory.size(); }
uint64_t Operation::transferred() const { return state_->transferred.load(std::memory_order_relaxed); }
bool Operation::stopped() const { return state_->stopped.load(std::memory_order_acquire); }
bool Operation::direct_refused() const { return state_->direct_refused.load(std::memory_order_relaxed); }
void Operation::RefuseDirect() { state_->direct_refused.store(true, std::memory_order_relaxed); }
void Operation::SetSlices(size_t count) { state_->slices_left.store(count, std::memory_order_relaxed); }
bool Operation::SliceDone() { return state_->slices_left.fetch_sub(1, std::memory_order_acq_rel) == 1; }

void Operation::DeferEdge(Edge edge) {
  MutexLock lock(state_->mutex);
  state_->edges.push_back(std::move(edge));
}

std::vector<Operation::Edge> Operation::TakeEdges() {
  MutexLock lock(state_->mutex);
  return std::exchange(state_->edges, {});
}

Operation::CallbackScope::CallbackScope() { ++callback_depth; }
Operation::CallbackScope::~CallbackScope() { --callback_depth; }
bool Operation::CallbackScope::active() { return callback_depth > 0; }

bool Operation::done() const {
  MutexLock lock(state_->mutex);
  return state_->done;
}

std::optional<Error> Operation::error() const {
  MutexLock lock(state_->mutex);
  return state_->done ? state_->error : std::nullopt;
}

bool Operation::cancelled() const {
  MutexLock lock(state_->mutex);
  return state_->done && state_->error && state_->error->code == ErrorCode::kCancelled;
}

bool Operation::Wait(std::optional<std::chrono::nanoseconds> timeout) const {
  const bool may_wait = !CallbackScope::active() && !WaitsForThisThread();
  MutexLock lock(state_->mutex);
  if (!may_wait) return state_->done;
  if (timeout) {
    const auto now = std::chrono::steady_clock::now();
    const auto end = now + std::min(*timeout, std::chrono::steady_clock::time_point::max() - now);
    while (!state_->done) {
      if (state_->ended.wait_until(lock.native(), end) == std::cv_status::timeout) return state_->done;
    }
  }
  while (!state_->done) state_->ended.wait(lock.native());
  return true;
}

bool Operation::WaitsForThisThread() const { return PendingRanges::AreOfThisThread(state_->plan.turns) && !done(); }

bool Operation::Cancel() {
  MutexLock lock(state_->mutex);
  if (state_->completing) return false;
  if (!state_->error) state_->error = Cancellation();
  state_->stopped.store(true);
  state_->cancel_requested = state_->error->code == ErrorCode::kCancelled;
  return state_->cancel_requested;
}

Error Operation::Cancellation() const {
  return {ErrorCode::kCancelled,
          fmt::format("{} of {} bytes at offset {} of {} was cancelled",
                      direction() == Direction::kWrite ? "write" : "read", size(), offset(), state_->path),
          state_->path, offset()};
}

void Operation::OnDone(std::function<void()> callback) {
  {
    MutexLock lock(state_->mutex);
    if (!state_->done) {
      state_->callbacks.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

bool Operation::AddTransferred(uint64_t bytes) {
  state_->transferred.fetch_add(bytes, std::memory_order_relaxed);
  if (!state_->plan.progress) return false;
  const MutexLock lock(state_->progress_mutex);
  const uint64_t sum = transferred(), last = state_->noted;
  // Limits progress to about a hundred reports.
  if (sum == last || (sum < size() && sum - last < size() / 100)) return false;
  state_->noted = sum;
  state_->reports.push_back(sum);
  return !std::exchange(state_->reporting, true);
}

bool Operation::Report() {
  MutexLock lock(state_->progress_mutex);
  for (; !state_->reports.empty(); state_->reports.pop_front()) {
    const uint64_t sum = state_->reports.front();
    lock.Unlock();
    {
      const CallbackScope scope;
      state_->plan.progress(sum, size());
    }
    lock.Lock();
  }
  state_->reporting = false;
  return std::exchange(state_->completes, false);
}

void Operation::Fail(Error error) {
  MutexLock lock(state_->mutex);
  if (state_->completing) return;
  if (!state_->error) state_->error = std::move(error);
  state_->stopped.store(true);
}

bool Operation::Complete() {
  if (state_->plan.progress) {
    const MutexLock lock(state_->progress_mutex);
    state_->completes = state_->reporting;
    if (state_->reporting) return false;
  }
  std::optional<Error> error;
  {
    MutexLock lock(state_->mutex);
    state_->completing = true;
    // Canceled by the end of its handle, too late: everything has been transferred.
    const bool stopped = state_->error && state_->error->code == ErrorCode::kCancelled && !state_->cancel_requested;
    if (stopped && !state_->plan.held && transferred() == size()) state_->error.reset();
    error = state_->error;
    WEIGHTFS_ASSERT(error || !state_->plan.held);
  }
  // cuFile must forget the target's descriptors before they are closed. A future that is kept must not keep GPU
  // resources.
  if (state_->plan.device != nullptr) state_->plan.device->CloseFiles();
  state_->plan.device.reset();
  if (state_->first) [[maybe_unused]]
    const auto unused = state_->first.access->Finish(false);
  Target& target = state_->plan.target;
  target.ranges.reset();  // a future that is kept must not keep its offsets either
  if (target) {
    auto finished = target.access->Finish(!error);
    if (!finished.has_value() && !error) error = std::move(finished).error();
  }
  bool calls = static_cast<bool>(state_->plan.progress);  // its destruction is a callback
  {
    MutexLock lock(state_->mutex);
    state_->error = std::move(error);
    state_->done = true;
    // Both under one lock: a thread that sees the operation done also sees it ended in the handle's tracker, and vice
    // versa.
    if (state_->plan.finished) state_->plan.finished(state_->error ? &*state_->error : nullptr);
    calls = calls || !state_->callbacks.empty();
  }
  state_->ended.notify_all();
  state_->plan.registration.reset();
  return calls;
}

bool Operation::EndsAtOnce() const {
  if (!state_->plan.target) return true;
  const MutexLock lock(state_->mutex);
  return !state_->stopped && state_->edges.empty() && !state_->first && access().FinishesAtOnce();
}

void Operation::RunCallbacks() {
  std::vector<std::function<void()>> callbacks;
  {
    const MutexLock lock(state_->mutex);
    callbacks.swap(state_->callbacks);
  }
  const CallbackScope scope;
  state_->plan.progress = nullptr;  // may hold a reference to the handle
  for (const auto& callback : callbacks) callback();
  callbacks.clear();  // their destruction may close a reader, as a callback may
}

}  // namespace weightfs::client
