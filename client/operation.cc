#include "client/operation.h"

#include <fmt/format.h>

#include <cerrno>

#include "client/gpu/gpu.h"

namespace weightfs::client {
namespace {

thread_local int callback_depth = 0;

}  // namespace

Operation::CallbackScope::CallbackScope() {
  ++callback_depth;
}
Operation::CallbackScope::~CallbackScope() {
  --callback_depth;
}
bool Operation::CallbackScope::active() {
  return callback_depth > 0;
}

bool Operation::done() const {
  MutexLock lock(mutex_);
  return done_;
}

std::optional<IoError> Operation::error() const {
  MutexLock lock(mutex_);
  return done_ ? error_ : std::nullopt;
}

bool Operation::cancelled() const {
  MutexLock lock(mutex_);
  return done_ && error_ && error_->error_number == ECANCELED;
}

bool Operation::Wait(std::optional<std::chrono::nanoseconds> timeout) const {
  MutexLock lock(mutex_);
  if (CallbackScope::active()) return done_;
  if (timeout) {
    const auto end = std::chrono::steady_clock::now() + *timeout;
    while (!done_) {
      if (ended_.wait_until(lock.native(), end) == std::cv_status::timeout) return done_;
    }
  }
  while (!done_) ended_.wait(lock.native());
  return true;
}

bool Operation::Cancel() {
  {
    MutexLock lock(mutex_);
    if (done_) return false;
  }
  const bool write = plan_.direction == Direction::kWrite;
  Fail({ECANCELED,
        fmt::format("{} of {} bytes at offset {} of {} was cancelled", write ? "write" : "read", size(),
                    plan_.offset, plan_.target->path()),
        plan_.target->path(), plan_.offset});
  return true;
}

void Operation::OnDone(std::function<void()> callback) {
  {
    MutexLock lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

void Operation::AddTransferred(uint64_t bytes) {
  const uint64_t sum = transferred_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (!plan_.progress) return;
  // A hundred reports do; and of two threads the one that is behind says nothing.
  uint64_t last = reported_.load(std::memory_order_relaxed);
  do {
    if (sum <= last || (sum < size() && sum - last < size() / 100)) return;
  } while (!reported_.compare_exchange_weak(last, sum, std::memory_order_relaxed));
  const CallbackScope scope;
  plan_.progress(sum, size());
}

void Operation::Fail(IoError error) {
  MutexLock lock(mutex_);
  if (completing_) return;
  if (!error_) error_ = std::move(error);
  stopped_.store(true, std::memory_order_release);
}

void Operation::Complete() {
  std::optional<IoError> error;
  {
    MutexLock lock(mutex_);
    completing_ = true;
    // Cancelled too late: everything was transferred.
    if (error_ && error_->error_number == ECANCELED && transferred() == size()) error_.reset();
    error = error_;
  }
  // cuFile forgets the target's descriptors before they are closed. Nothing of a GPU stays with a future that is kept.
  if (plan_.device != nullptr) plan_.device->CloseFiles();
  plan_.device.reset();
  auto finished = plan_.target->Finish(!error);
  if (!finished.has_value() && !error) error = std::move(finished).error();
  std::vector<std::function<void()>> callbacks;
  {
    MutexLock lock(mutex_);
    error_ = std::move(error);
    done_ = true;
    // In one step: who learns of the end here finds it in the handle's account, and the other way round.
    if (plan_.finished) plan_.finished(error_ ? &*error_ : nullptr);
    callbacks.swap(callbacks_);
  }
  ended_.notify_all();
  plan_.place.reset();
  const CallbackScope scope;
  for (const auto& callback : callbacks) callback();
}

}  // namespace weightfs::client
