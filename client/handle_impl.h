// SPDX-License-Identifier: Apache-2.0
// The implementation of Handle.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/gpu/gpu.h"
#include "client/handle.h"
#include "client/open/opener.h"
#include "client/ring.h"
#include "common/mutex.h"

namespace weightfs::client {

// Interval at which a waiting thread checks for an interrupt.
inline constexpr auto kInterruptCheckInterval = std::chrono::milliseconds(100);

// Counts the operations that Handle::Wait waits for. Thread-safe.
class OperationTracker {
 public:
  // Registers an operation and returns its number.
  uint64_t Begin() {
    const MutexLock lock(mutex_);
    pending_.insert(next_);
    return next_++;
  }

  void End(uint64_t number, const Error* error, bool own_errors) {
    const MutexLock lock(mutex_);
    pending_.erase(number);
    changed_.notify_all();
    if (own_errors) return;
    if (error == nullptr) {
      ++completed_.count;
      return;
    }
    ++completed_.failed;
    if (completed_.errors.size() < Handle::kMaxErrors) completed_.errors.push_back(*error);
  }

  Handle::Completed Wait(const Interrupted& interrupted) {
    MutexLock lock(mutex_);
    const uint64_t until = next_;
    auto look = std::chrono::steady_clock::now() + kInterruptCheckInterval;
    while (!pending_.empty() && *pending_.begin() < until) {
      if (changed_.wait_until(lock.native(), look) == std::cv_status::no_timeout &&
          std::chrono::steady_clock::now() < look) {
        continue;
      }
      lock.Unlock();
      if (interrupted && interrupted()) return {};
      lock.Lock();
      look = std::chrono::steady_clock::now() + kInterruptCheckInterval;
    }
    return std::exchange(completed_, {});
  }

  size_t pending() const {
    const MutexLock lock(mutex_);
    return pending_.size();
  }

 private:
  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::set<uint64_t> pending_ GUARDED_BY(mutex_);  // operation numbers, in order of their start
  uint64_t next_ GUARDED_BY(mutex_) = 1;
  Handle::Completed completed_ GUARDED_BY(mutex_);
};

inline constexpr unsigned kMaxDepth = 65'536;  // of a queue

// Thread-safe. Hidden, although its outer class is exported.
class __attribute__((visibility("hidden"))) Handle::Impl {
 public:
  explicit Impl(const HandleOptions& options) : options_(options), opener_(options.direct) {}
  ~Impl();
  Result<void> Start();

  struct Request : Opener::Request {
    Target target = {};    // already open; empty: Begin opens it
    MemoryView memory;
    Progress progress;
    Interrupted interrupted;
    bool counted = false;
    bool own_errors = false;
    bool checked = false;  // `checksum` or `verify` is set
    bool stable = false;   // WriteOptions::stable
  };
  static Result<Request> MakeReadRequest(const FileName& file, const MemoryView& memory, const ReadOptions& options);
  static Request MakeWriteRequest(const FileName& file, const MemoryView& memory, const WriteOptions& options);

  // `helped`: the caller is going to drive the first ring, which is returned here.
  Result<std::shared_ptr<Operation>> Begin(Request request, Ring** helped);
  // Returns when the operation is done.
  Result<void> BeginAndHelp(Request request);
  // Like BeginAndHelp, for an operation at offset 0 whose file is already open.
  Result<void> Run(std::unique_ptr<Access> access, MemoryView memory, Operation::Direction direction, Progress progress,
                   Interrupted interrupted);

  Completed Wait(const Interrupted& interrupted);
  size_t pending() const { return forked() ? 0 : tracker_->pending(); }
  Direct direct() const { return options_.direct; }
  PendingRanges& ranges() const { return opener_.ranges(); }
  bool forked() const { return owner_ != getpid(); }
  // EDEADLK in a callback, EPERM in a forked child.
  Result<void> CheckMayWait(const std::string& path) const;
  Result<int> Map(int descriptor, uint64_t offset, uint64_t length, bool load, const Interrupted& interrupted);
  uint64_t direct_operations() const { return direct_operations_.load(std::memory_order_relaxed); }
  const std::shared_ptr<LeaseConnections>& connections() const { return opener_.connections(); }

  // Initialized on first use.
  Result<std::shared_ptr<Gpu>> TheGpu() EXCLUDES(gpu_mutex_);
  // Null if TheGpu has not been called.
  std::shared_ptr<Gpu> known_gpu() const EXCLUDES(gpu_mutex_);

 private:
  static void AddChecksums(Request& request);
  // The turn of an operation that had to wait for others: opens its file, as a task of a ring, and dispatches it.
  void TakeTurn(const std::shared_ptr<Operation>& operation, Opener::Request request);
  void Dispatch(const std::shared_ptr<Operation>& operation, Ring** helped);
  Ring& NextRing() { return *rings_[next_ring_.fetch_add(1, std::memory_order_relaxed) % rings_.size()]; }

  const pid_t owner_ = getpid();
  const std::shared_ptr<OperationTracker> tracker_ = std::make_shared<OperationTracker>();
  const HandleOptions options_;
  const Opener opener_;
  std::atomic<bool> stopping_{false};
  mutable Mutex gpu_mutex_;
  std::shared_ptr<Gpu> gpu_ GUARDED_BY(gpu_mutex_);
  std::vector<std::shared_ptr<Ring>> rings_;
  std::atomic<size_t> next_ring_{0};
  std::atomic<uint64_t> direct_operations_{0};
};

}  // namespace weightfs::client
