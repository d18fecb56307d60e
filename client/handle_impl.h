// SPDX-License-Identifier: Apache-2.0
// The implementation of Handle.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/file_target.h"
#include "client/gpu/gpu.h"
#include "client/handle.h"
#include "client/lease/lease_connection.h"
#include "client/operation_tracker.h"
#include "client/pending_ranges.h"
#include "client/ring.h"
#include "common/mutex.h"

namespace weightfs::client {

// Makes a relative path absolute. Returns it unchanged if that is not possible.
std::string FromTheRoot(const std::string& path);

// Identifies a path rather than a file when operations are ordered. Operations on paths with equal ids wait for each
// other.
FileId IdOfPath(const std::string& path);

// EDEADLK: the operation would wait for a SaveMany or LoadMany of its own thread.
Error HeldByThisThread(const std::string& path, uint64_t offset);

// Thread-safe. Hidden, although its outer class is exported.
class __attribute__((visibility("hidden"))) Handle::Impl {
 public:
  ~Impl();
  Result<void> Start(const HandleOptions& options);

  struct Request {
    FileTarget::Options file;
    std::unique_ptr<Target> target = nullptr;  // already open; null: Begin opens it
    MemoryView memory;
    Progress progress;
    Interrupted interrupted;
    bool counted = false;
    bool own_errors = false;
    bool checked = false;  // `checksum` or `verify` is set
    bool stable = false;   // WriteOptions::stable
    bool ordered = true;   // false: the caller has registered its file

    bool writes() const { return file.direction == Operation::Direction::kWrite; }
  };
  static Result<Request> MakeReadRequest(const FileName& file, const MemoryView& memory, const ReadOptions& options);
  static Request MakeWriteRequest(const FileName& file, const MemoryView& memory, const WriteOptions& options);

  // `helped`: the caller is going to drive the first ring, which is returned here.
  Result<std::shared_ptr<Operation>> Begin(Request request, Ring** helped);
  // Returns when the operation is done.
  Result<void> BeginAndHelp(Request request);
  // Like BeginAndHelp, for an operation at offset 0 whose target is already open.
  Result<void> Run(std::unique_ptr<Target> target, MemoryView memory, Operation::Direction direction, Progress progress,
                   Interrupted interrupted);

  Completed Wait(const Interrupted& interrupted);
  size_t pending() const { return forked() ? 0 : tracker_->pending(); }
  Direct direct() const { return direct_; }
  PendingRanges& ranges() const { return *ranges_; }
  bool forked() const { return owner_ != getpid(); }
  // EDEADLK in a callback, EPERM in a forked child.
  Result<void> CheckMayWait(const std::string& path) const;
  uint64_t direct_operations() const { return direct_operations_.load(std::memory_order_relaxed); }
  const std::shared_ptr<LeaseConnections>& connections() const { return connections_; }

  // Initialized on first use.
  Result<std::shared_ptr<Gpu>> TheGpu() EXCLUDES(gpu_mutex_);
  // Null if TheGpu has not been called.
  std::shared_ptr<Gpu> known_gpu() const EXCLUDES(gpu_mutex_);

 private:
  static void AddChecksums(Request& request);
  struct Opened {
    // Null if the operation is not ordered. Destroyed after the target, so that the operations waiting for it see the
    // result of a rollback.
    std::shared_ptr<PendingRanges::Registration> registration = nullptr;
    std::unique_ptr<Target> target = nullptr;
    bool waits() const { return registration != nullptr && registration->waits(); }
  };
  Result<Opened> Open(Request& request, bool may_lease);
  // Registers an operation that found no file, if a pending one on the same path may create the file. Otherwise returns
  // no target.
  Result<Opened> AwaitFile(const FileTarget::Options& file, const Error& error);
  // Begins an operation that had to wait for others.
  void BeginHeld(const std::shared_ptr<Operation>& operation, FileTarget::Options options, bool may_lease,
                 bool stopping);
  // Null if the operation is not ordered.
  Result<std::shared_ptr<PendingRanges::Registration>> Register(const FileTarget::Options& file,
                                                                std::optional<FileId> id);
  // Sets the offset in `options` to the one that the target begins at.
  Result<std::unique_ptr<Target>> OpenAgain(FileTarget::Options& options, bool may_lease);
  // Adds what an opened and prepared target still lacks: a lease, if there is one, and the gathering of ranges.
  Result<std::unique_ptr<Target>> Complete(std::unique_ptr<Target> file, const FileTarget::Options& options,
                                           bool may_lease);
  Result<std::unique_ptr<Target>> TryLease(std::unique_ptr<Target> file, const FileTarget::Options& options,
                                           bool may_lease);
  void Dispatch(const std::shared_ptr<Operation>& operation, Ring** helped);

  const pid_t owner_ = getpid();
  const std::shared_ptr<OperationTracker> tracker_ = std::make_shared<OperationTracker>();
  const std::shared_ptr<LeaseConnections> connections_ = std::make_shared<LeaseConnections>();
  Direct direct_ = Direct::kAuto;
  GpuOptions gpu_options_;
  mutable Mutex gpu_mutex_;
  std::shared_ptr<Gpu> gpu_ GUARDED_BY(gpu_mutex_);
  const std::shared_ptr<PendingRanges> ranges_ = std::make_shared<PendingRanges>();
  std::vector<std::shared_ptr<Ring>> rings_;
  std::atomic<size_t> next_ring_{0};
  std::atomic<uint64_t> direct_operations_{0};
};

}  // namespace weightfs::client
