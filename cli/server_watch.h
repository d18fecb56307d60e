// SPDX-License-Identifier: Apache-2.0
// Waiting for the daemon of a store after an unmount.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "cli/keepers.h"
#include "common/descriptor.h"
#include "common/mounts.h"
#include "common/result.h"
#include "store/volume/store_directory.h"

namespace weightfs::cli {

// Watches the process that serves a mount until it has closed the store. Externally synchronized.
class ServerWatch {
 public:
  // How the wait ended.
  struct End {
    bool closed = false;  // the store is closed well
    Keepers keepers;      // otherwise: whoever keeps the daemon going
    StoreHolder holder;
  };

  // Before the unmount: afterwards the process may be gone, and another one under its number.
  explicit ServerWatch(const MountEntry& mount);

  // Waits until the store is closed, which may take as long as its data; but only `timeout` while the filesystem is
  // kept by others. Says on standard error what it waits for: on a terminal at once, elsewhere when it takes long.
  // With `leave_kept` it does not wait for those others at all; with `forced` they do not matter, for the daemon ends
  // all the same. An error when the store was not closed well.
  Result<End> Wait(std::chrono::milliseconds timeout, bool leave_kept, bool forced);

  // Sends the daemon SIGTERM, on which it ends the mount; false where it is not known or not ours.
  bool AskToEnd() const;
  // Whether the store is not served any more. Takes the lock for a moment, shared.
  bool IsGone() const;
  // Whether the daemon knows `directory` as its own mount point; true when it says nothing about that.
  bool IsMainMount(const std::string& directory) const;
  pid_t process() const { return holder_.process; }

 private:
  Result<End> Verdict() const;
  bool IsReleased();
  bool HasLockOpen(pid_t process) const;
  void Report(std::chrono::milliseconds waited, std::chrono::milliseconds timeout,
              const std::optional<Keepers>& keepers);

  const std::string store_, device_;
  const Descriptor lock_;
  const StoreHolder holder_;
  const Descriptor process_;
  std::string reported_;
};

}  // namespace weightfs::cli
