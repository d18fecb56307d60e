// SPDX-License-Identifier: Apache-2.0
// The implementation of Handle.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/gpu/gpu.h"
#include "client/handle.h"
#include "client/open/opener.h"
#include "client/operation_tracker.h"
#include "client/ring.h"
#include "common/mutex.h"

namespace weightfs::client {

inline constexpr unsigned kMaxDepth = 65'536;  // of a queue

// Thread-safe. Hidden, although its outer class is exported.
class __attribute__((visibility("hidden"))) Handle::Impl {
 public:
  explicit Impl(Direct direct) : direct_(direct), opener_(direct) {}
  ~Impl();
  Result<void> Start(const HandleOptions& options);

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
  Direct direct() const { return direct_; }
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
  const Direct direct_;
  const Opener opener_;
  std::atomic<bool> stopping_{false};
  GpuOptions gpu_options_;
  mutable Mutex gpu_mutex_;
  std::shared_ptr<Gpu> gpu_ GUARDED_BY(gpu_mutex_);
  std::vector<std::shared_ptr<Ring>> rings_;
  std::atomic<size_t> next_ring_{0};
  std::atomic<uint64_t> direct_operations_{0};
};

}  // namespace weightfs::client
