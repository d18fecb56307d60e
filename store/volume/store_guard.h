// SPDX-License-Identifier: Apache-2.0
// Keeps a store on a distributed filesystem from being written by two machines. The server of such a filesystem drops
// the locks of a machine that it does not hear from, and another machine may then open the store. The first machine
// does not learn about that by itself. See docs/ARCHITECTURE.md, "Stores on distributed filesystems".
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "engine/superblock.h"
#include "meta/kv_store.h"

namespace weightfs {

// True when locks on `path` belong to a server that may drop them: a network or FUSE filesystem. Also true when that
// cannot be determined.
bool MayLoseLocks(const std::string& path);

// Checks that this process still owns its store: that it holds the locks, which it takes again if the server has
// dropped them, and that the superblocks name it as their owner. Thread-safe. Every write to the devices and the
// catalog must be preceded by a successful check that is less than kValidity old. A thread repeats the check, so that
// writers rarely wait for one.
class StoreGuard {
 public:
  // Includes the time in which the machine was suspended.
  using Clock = std::function<std::chrono::nanoseconds()>;
  // Shorter than the time after which any server drops locks.
  static constexpr std::chrono::milliseconds kValidity{1000};

  explicit StoreGuard(std::string directory, Clock clock = {});
  ~StoreGuard();
  StoreGuard(const StoreGuard&) = delete;
  StoreGuard& operator=(const StoreGuard&) = delete;

  // Starts to check. `locked` are descriptors with exclusive flocks, `devices` (a subset of them) those with
  // superblocks, which `owner` has just claimed. Until this call everything may be written. kAgain: there is no thread.
  Result<void> Start(std::vector<UniqueFd> locked, std::vector<UniqueFd> devices, const Uuid& owner) EXCLUDES(mutex_);

  // True when the last check is recent and succeeded; otherwise checks first, which waits for the filesystem.
  bool MayWrite() EXCLUDES(mutex_) { return Check(kValidity).has_value(); }
  // Checks now. kReadOnly when another process has taken the store: then every later check fails too.
  Result<void> Verify() EXCLUDES(mutex_) { return Check(std::chrono::nanoseconds(0)); }
  // True when another process has taken the store.
  bool lost() const { return lost_.load(); }

 private:
  Result<void> Check(std::chrono::nanoseconds validity) EXCLUDES(mutex_);
  Result<void> Examine() REQUIRES(mutex_);
  void Run() EXCLUDES(ending_mutex_);

  const std::string directory_;
  const Clock clock_;
  std::atomic<bool> started_{false}, lost_{false};
  std::atomic<int64_t> checked_ns_{0};  // when the last successful check began
  Mutex mutex_;                         // held during a check; no other lock is taken under it
  std::vector<UniqueFd> locked_ GUARDED_BY(mutex_), devices_ GUARDED_BY(mutex_);
  Uuid owner_ GUARDED_BY(mutex_) = {};
  bool reported_ GUARDED_BY(mutex_) = false;
  Mutex ending_mutex_;
  std::condition_variable wake_;
  bool ending_ GUARDED_BY(ending_mutex_) = false;
  std::thread thread_;
};

// The catalog of a guarded store. Thread-safe. A batch is rejected when the store may not be written. A sync succeeds
// only if the store was still owned after it: a log that another machine has replaced can be synced, too.
class GuardedKvStore final : public KvStoreWrapper {
 public:
  // `guard` must outlive this object.
  GuardedKvStore(std::unique_ptr<KvStore> catalog, StoreGuard& guard)
      : KvStoreWrapper(std::move(catalog)), guard_(guard) {}

  bool failed() const override { return guard_.lost() || KvStoreWrapper::failed(); }
  Result<void> Write(KvBatch batch) override;
  Result<void> Sync() override;

 private:
  StoreGuard& guard_;
};

}  // namespace weightfs
