// What is behind a Handle; handle.h is for its users.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/file_target.h"
#include "client/gpu/gpu.h"
#include "client/handle.h"
#include "client/lease_connection.h"
#include "client/ring.h"
#include "common/mutex.h"

namespace weightfs::client {

// What Wait counts. Thread-safe.
class Account {
 public:
  uint64_t Begin() EXCLUDES(mutex_);
  void End(uint64_t number, const IoError* error, bool own_errors) EXCLUDES(mutex_);
  // Of the operations begun before the call.
  Handle::Completed Wait() EXCLUDES(mutex_);
  size_t pending() const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::set<uint64_t> pending_ GUARDED_BY(mutex_);  // numbers, in the order of their start
  uint64_t next_ GUARDED_BY(mutex_) = 1;
  Handle::Completed completed_ GUARDED_BY(mutex_);
};

// Thread-safe. Hidden, though its outer class is exported.
class __attribute__((visibility("hidden"))) Handle::Impl {
 public:
  ~Impl();
  IoResult<void> Start(const HandleOptions& options);

  struct Wish {
    FileTarget::Options file;
    std::unique_ptr<Target> target = nullptr;  // what it was opened as; otherwise it is opened here
    MemoryView memory;
    Progress progress;
    bool counted = false;
    bool own_errors = false;
    bool checked = false;  // `checksum` or `verify`
  };
  static IoResult<Wish> WishToRead(const FileName& file, const MemoryView& memory, const ReadOptions& options);
  static Wish WishToWrite(const FileName& file, const MemoryView& memory, const WriteOptions& options);

  // `helped`: the caller is going to drive the first ring, which is returned.
  IoResult<std::shared_ptr<Operation>> Begin(Wish wish, Ring** helped);
  // Returns when it is done.
  IoResult<void> BeginAndHelp(Wish wish);
  // The same for an operation from offset 0 on whose target is open.
  IoResult<void> Run(std::unique_ptr<Target> target, MemoryView memory, Operation::Direction direction,
                     Progress progress);

  Account& account() { return *account_; }
  Direct direct() const { return direct_; }
  bool forked() const { return owner_ != getpid(); }
  // EDEADLK in a callback, EPERM in a forked child.
  IoResult<void> CheckMayWait(const std::string& path) const;
  uint64_t direct_operations() const { return direct_operations_.load(std::memory_order_relaxed); }
  const std::shared_ptr<LeaseConnections>& connections() const { return connections_; }

  // Looked for when it is first needed.
  IoResult<std::shared_ptr<Gpu>> TheGpu() EXCLUDES(gpu_mutex_);
  // Null when nobody looked for it.
  std::shared_ptr<Gpu> known_gpu() const EXCLUDES(gpu_mutex_);

 private:
  static IoResult<void> AddChecksums(Wish& wish);
  IoResult<std::unique_ptr<Target>> OpenTarget(const FileTarget::Options& options, bool may_lease);
  void HandOut(const std::shared_ptr<Operation>& operation, Ring** helped);

  const pid_t owner_ = getpid();
  const std::shared_ptr<Account> account_ = std::make_shared<Account>();
  const std::shared_ptr<LeaseConnections> connections_ = std::make_shared<LeaseConnections>();
  Direct direct_ = Direct::kAuto;
  GpuMode gpu_mode_ = GpuMode::kOnDemand;
  std::string cufile_library_;
  mutable Mutex gpu_mutex_;
  std::shared_ptr<Gpu> gpu_ GUARDED_BY(gpu_mutex_);
  std::vector<std::shared_ptr<Ring>> rings_;
  std::atomic<size_t> next_ring_{0};
  std::atomic<uint64_t> direct_operations_{0};
};

}  // namespace weightfs::client
