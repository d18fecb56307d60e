// SPDX-License-Identifier: Apache-2.0
// Waits for the daemon of a store after an unmount.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "cli/keepers.h"
#include "common/mounts.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "store/volume/store_directory.h"

namespace weightfs::cli {

// Watches the process that serves a mount until it has closed the store. Externally synchronized.
class ServerWatch {
 public:
  // The result of the wait.
  struct End {
    bool closed = false;  // the store was closed cleanly
    Keepers keepers;      // otherwise: what keeps the daemon running
    StoreHolder holder;
  };

  // Must be created before the unmount. Afterwards the process may be gone, and its number may be reused.
  explicit ServerWatch(const MountEntry& mount);

  // Waits until the store is closed, which takes as long as writing its data. While others keep the filesystem in use,
  // waits no longer than `timeout`; with `leave_kept` it does not wait for them at all; with `forced` they do not
  // matter, because the daemon ends anyway. Reports the wait on standard error: on a terminal at once, elsewhere if it
  // takes long. Returns an error if the store was not closed cleanly.
  Result<End> Wait(std::chrono::milliseconds timeout, bool leave_kept, bool forced);

  // Sends SIGTERM to the daemon, which then collects the changes made through shared mappings and ends its mount. Waits
  // while `is_mounted` is true, until the store is closed: at most `timeout` until the daemon notes that it is closing,
  // and without a limit after that. Reports on standard error if the daemon does not answer. Returns an error if the
  // daemon serves the mount and is not reachable from this PID namespace.
  Result<void> EndMount(std::chrono::milliseconds timeout, const std::function<bool()>& is_mounted);
  // True if the mount had lost its daemon when this object was created.
  bool IsGone() const;
  // True if `directory` is the daemon's own mount point, or if the daemon does not say.
  bool IsMainMount(const std::string& directory) const;
  // The holder of the store when this object was created.
  const StoreHolder& holder() const { return holder_; }

 private:
  StoreHolder Look() const;
  // True if the holder does not serve this mount.
  bool IsOther(const StoreHolder& holder) const;
  Result<End> Verdict() const;
  // Sleeps briefly, or until the daemon ends.
  void Sleep() const;
  void Report(std::chrono::milliseconds waited, std::chrono::milliseconds timeout,
              const std::optional<Keepers>& keepers);

  const MountEntry mount_;
  const UniqueFd lock_;
  const StoreHolder holder_;
  const UniqueFd process_;
  std::string reported_;
};

}  // namespace weightfs::cli
