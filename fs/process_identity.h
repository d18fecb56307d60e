// SPDX-License-Identifier: Apache-2.0
// Processes that stay distinguishable after they have ended, unlike process IDs, which the kernel reuses. Private to
// fs/.
#pragma once

#include <sys/types.h>

#include <memory>
#include <unordered_map>

#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs {

// Immutable. Holds a descriptor of the process (pidfd).
class ProcessIdentity {
 public:
  ProcessIdentity(pid_t process, UniqueFd descriptor) : process_(process), descriptor_(std::move(descriptor)) {}

  // True if the process has this ID and has not ended. Until it has ended, no other process gets the ID.
  bool Is(pid_t process) const { return process == process_ && !HasEnded(); }
  bool HasEnded() const;

 private:
  const pid_t process_;
  const UniqueFd descriptor_;  // none for 0
};

using ProcessPtr = std::shared_ptr<const ProcessIdentity>;

// Thread-safe.
class ProcessTable {
 public:
  static constexpr size_t kMost = 1024;  // processes with an identity at a time, each with a descriptor
  explicit ProcessTable(size_t most = kMost) : most_(most) {}

  // Returns the identity of a process that cannot end meanwhile: one of its threads waits for the reply to a request.
  // The same identity while an earlier one is in use. 0 stands for all processes that this process does not see.
  // Returns kAgain for too many processes. When pidfd_open(2) fails, logs its first error, and returns ESRCH if this
  // process may not call it.
  Result<ProcessPtr> Of(pid_t process) EXCLUDES(mutex_);

 private:
  const size_t most_;
  Mutex mutex_;
  bool logged_ GUARDED_BY(mutex_) = false;
  std::unordered_map<pid_t, std::weak_ptr<const ProcessIdentity>> known_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
