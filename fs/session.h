// SPDX-License-Identifier: Apache-2.0
// The connection to the kernel: mounting, negotiating features, receiving requests, shutdown. Private to fs/.
#pragma once

#include <poll.h>
#include <semaphore.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/mounts.h"
#include "common/mutex.h"
#include "common/result.h"
#include "fs/filesystem.h"
#include "fs/mountpoint.h"

namespace weightfs {

// Busy-polls for the next request for a moment before sleeping, while requests arrive quickly: waking a sleeping thread
// on an idle processor takes longer than serving a request about names. The receivers of a session share one SpinWait,
// and one of them polls at a time. After a pause longer than `limit` receivers sleep at once, so an idle mount uses no
// CPU. Thread-safe.
class SpinWait {
 public:
  explicit SpinWait(std::chrono::microseconds limit) : limit_(limit) {}

  // Returns when `descriptor` is readable, or when polling is not, or no longer, worthwhile.
  void Wait(int descriptor) {
    if (!worthwhile_.load(std::memory_order_relaxed) || looking_.exchange(true)) return;
    pollfd look{.fd = descriptor, .events = POLLIN, .revents = 0};
    const auto until = Now() + limit_.count();
    while (poll(&look, 1, 0) == 0 && Now() < until) {
    }
    looking_.store(false);
  }
  // Call this when a request was received, at `now`. `quick`: it waits for no device and copies little.
  void Arrived(bool quick, std::chrono::steady_clock::time_point now) {
    const int64_t time = now.time_since_epoch().count();
    const bool soon = limit_.count() > 0 && time - finished_.load(std::memory_order_relaxed) < limit_.count();
    worthwhile_.store(soon && quick, std::memory_order_relaxed);
  }
  // Call this when the request has been served, at `now`.
  void Finished(std::chrono::steady_clock::time_point now) {
    if (limit_.count() > 0) finished_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }

 private:
  static int64_t Now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

  const std::chrono::nanoseconds limit_;
  std::atomic<int64_t> finished_{0};  // when the last request was served
  std::atomic<bool> worthwhile_{false};
  std::atomic<bool> looking_{false};
};

// Call Create, then Mount or Attach, then Negotiate, then Run, all from one thread; Stop from any thread.
class Session {
 public:
  // Creates an unmounted session. `filesystem` must outlive it; its options say how to mount.
  static Result<std::unique_ptr<Session>> Create(Filesystem& filesystem, const MountOptions& options);
  // Unmounts if mounted.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Result<void> Mount();
  // Speaks FUSE over a packet-preserving descriptor instead of mounting, and takes ownership of the descriptor. For
  // tests.
  Result<void> Attach(int descriptor);

  // Answers the kernel's INIT. Call it before Run.
  Result<void> Negotiate();
  // The kernel's offer in INIT. Valid after Negotiate.
  const KernelOffer& offer() const { return offer_; }
  const FeatureMask& mask() const { return mask_; }

  // Serves until the connection ends or Stop is called. On return every request has been answered. Returns an error
  // when receiving failed.
  Result<void> Run();
  // Async-signal-safe.
  void Stop();

  // The mount entry of this session in the system's mount table; nullopt when attached.
  std::optional<MountEntry> FindOwnMount() const;
  // How the mount tables name the mounted filesystem; empty when attached.
  const MountedFilesystem& identity() const { return identity_; }

  // Closes the connection and unmounts. Call it once, after or instead of Run.
  void Unmount();

 private:
  Session(Filesystem& filesystem, const MountOptions& options);

  Result<void> UseDescriptor(int descriptor);
  // If not all can be started, notes the failure and stops the session.
  bool StartReceivers(std::vector<std::thread>* receivers) EXCLUDES(mutex_);
  void Receive();
  // Receives and processes one request, and sets the time when it was received. Returns false when the connection has
  // ended.
  bool ReceiveOne(ReceiveBuffer& buffer, CloseTracker::Clock::time_point* received);
  void Process(fuse_buf& request);
  void EndReceivers(std::vector<std::thread>& receivers);
  static void OnInit(void* userdata, fuse_conn_info* connection);
  static ssize_t OnRead(int descriptor, void* buffer, size_t size, void* userdata);
  static ssize_t OnWrite(int descriptor, iovec* iov, int count, void* userdata);

  Filesystem& filesystem_;
  const MountOptions& options_;
  fuse_lowlevel_ops operations_{};
  fuse_session* session_ = nullptr;
  int descriptor_ = -1;  // owned by libfuse; closed by Unmount
  sem_t stop_;           // posted by Stop and by the end of the last receiver
  bool attached_ = false;
  bool ended_ = false;
  std::string mount_path_;  // empty when nothing is mounted
  MountedFilesystem identity_;
  FeatureMask mask_;
  KernelOffer offer_;
  std::unique_ptr<ReceiveBuffers> buffers_;

  std::atomic<bool> stopping_{false};
  SpinWait spin_;
  Mutex mutex_;
  std::condition_variable left_;
  unsigned receiving_ GUARDED_BY(mutex_) = 0;
  // When the receivers heard of the unmount, the first one of them; until then when one left last.
  CloseTracker::Clock::time_point received_ GUARDED_BY(mutex_);
  bool unmounted_ GUARDED_BY(mutex_) = false;
  std::optional<Error> failure_ GUARDED_BY(mutex_);
};

// Mounts on an empty directory, reads the kernel's offer, and unmounts.
Result<KernelOffer> ProbeOffer(const std::string& directory);

}  // namespace weightfs
