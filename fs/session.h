// SPDX-License-Identifier: Apache-2.0
// The connection to the kernel: mounting, negotiating features, receiving requests, shutdown. Private to fs/.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <condition_variable>
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
#include "fs/spin_wait.h"

namespace weightfs {

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
