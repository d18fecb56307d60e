// SPDX-License-Identifier: Apache-2.0
// Waiting for the daemon of a store after an unmount.
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
  // How the wait ended.
  struct End {
    bool closed = false;  // the store is closed well
    Keepers keepers;      // otherwise: the processes that keep the daemon going
    StoreHolder holder;
  };

  // Before the unmount: afterwards the process may be gone, and another one under its number.
  explicit ServerWatch(const MountEntry& mount);

  // Waits until the store is closed, which may take as long as its data; but only `timeout` while the filesystem is
  // kept by others. Says on standard error what it waits for: on a terminal at once, elsewhere when it takes long.
  // With `leave_kept` it does not wait for those others at all; with `forced` they do not matter, for the daemon ends
  // all the same. An error when the store was not closed well.
  Result<End> Wait(std::chrono::milliseconds timeout, bool leave_kept, bool forced);

  // Sends the daemon SIGTERM, on which it fetches what shared mappings changed and then ends its mount. Waits while
  // `is_mounted`, until the store is closed: no longer than `timeout` until the daemon notes that it is closing, and
  // without limit from then on. Says on standard error when the daemon does not answer. An error when it serves the
  // mount and cannot be reached from this PID namespace.
  Result<void> EndMount(std::chrono::milliseconds timeout, const std::function<bool()>& is_mounted);
  // Whether the mount had lost its daemon when this was made.
  bool IsGone() const;
  // Whether the daemon knows `directory` as its own mount point; true when it says nothing about that.
  bool IsMainMount(const std::string& directory) const;
  // Who held the store when this was made.
  const StoreHolder& holder() const { return holder_; }

 private:
  StoreHolder Look() const;
  // The holder is not the one of this mount.
  bool IsOther(const StoreHolder& holder) const;
  Result<End> Verdict() const;
  // Until the daemon ends, or for a moment.
  void Sleep() const;
  void Report(std::chrono::milliseconds waited, std::chrono::milliseconds timeout,
              const std::optional<Keepers>& keepers);

  const std::string store_, device_;
  const UniqueFd lock_;
  const StoreHolder holder_;
  const UniqueFd process_;
  std::string reported_;
};

}  // namespace weightfs::cli
