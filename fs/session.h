// SPDX-License-Identifier: Apache-2.0
// The conversation with the kernel: mounting, agreeing on features, receiving requests, the end. Private to fs/.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "fs/filesystem.h"
#include "fs/mountpoint.h"
#include "fs/spin_wait.h"

namespace weightfs {

// Created, then mounted (or attached), then Negotiate, then Run, by one thread; Stop from anywhere.
class Session {
 public:
  // Not mounted yet. `filesystem` outlives the session; its options say how to mount.
  static Result<std::unique_ptr<Session>> Create(Filesystem& filesystem, const MountOptions& options);
  // Unmounts what is mounted.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Result<void> Mount();
  // Talks FUSE over a descriptor that keeps packets whole instead of mounting; takes the descriptor. For tests.
  Result<void> Attach(int descriptor);

  // Answers the kernel's INIT. Nothing else is served before.
  Result<void> Negotiate();
  // The offer of the kernel, as INIT had it. Valid after Negotiate.
  const KernelOffer& offer() const { return offer_; }
  const FeatureMask& mask() const { return mask_; }

  // Serves until the connection ends or Stop; returns with every request answered. An error when receiving failed.
  Result<void> Run();
  // Async-signal-safe.
  void Stop();

  // Where it is mounted, as the system shows it; nothing when attached.
  std::optional<MountEntry> FindOwnMount() const;
  // "MAJOR:MINOR" of the mounted filesystem; empty when attached.
  const std::string& device() const { return mount_device_; }

  // Lets the connection and the mount go. Once, after Run (or in its place).
  void Unmount();

 private:
  Session(Filesystem& filesystem, const MountOptions& options);

  Result<void> UseDescriptor(int descriptor);
  void Receive();
  // One request, or false when the connection is over.
  bool ReceiveOne(ReceiveBuffer& buffer);
  void Process(fuse_buf& request);
  void EndReceivers(std::vector<std::thread>& receivers);
  static void OnInit(void* userdata, fuse_conn_info* connection);
  static ssize_t OnRead(int descriptor, void* buffer, size_t size, void* userdata);
  static ssize_t OnWrite(int descriptor, iovec* iov, int count, void* userdata);

  Filesystem& filesystem_;
  const MountOptions& options_;
  fuse_lowlevel_ops operations_{};
  fuse_session* session_ = nullptr;
  int descriptor_ = -1;  // libfuse's; closed by Unmount
  UniqueFd stop_event_;  // readable once Stop was called or the last receiver has left
  bool attached_ = false;
  bool ended_ = false;
  std::string mount_path_;    // empty when nothing is mounted
  std::string mount_device_;  // MAJOR:MINOR
  FeatureMask mask_;
  KernelOffer offer_;
  std::unique_ptr<ReceiveBuffers> buffers_;

  std::atomic<bool> stopping_{false};
  SpinWait spin_;
  Mutex mutex_;
  std::condition_variable left_;
  unsigned receiving_ GUARDED_BY(mutex_) = 0;
  std::optional<Error> failure_ GUARDED_BY(mutex_);
};

// Mounts on an empty directory, reads what the kernel offers, and unmounts again.
Result<KernelOffer> ProbeOffer(const std::string& directory);

}  // namespace weightfs
