// SPDX-License-Identifier: Apache-2.0
// The processes behind requests, and their credentials, for decisions that the kernel leaves to a filesystem. It tells
// a FUSE daemon only the thread of a request. Private to fs/.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "store/types.h"

namespace weightfs {

class Reply;

struct Caller : Credentials {
  pid_t process = 0;  // that the thread belongs to; 0: unknown
};

// Returns the credentials of the thread whose request waits for `reply`. The thread cannot exit or change them
// meanwhile, so its id cannot be reused. Groups and capabilities come from /proc and cost a few file reads; call this
// only where they matter.
//
// Capabilities count only if the thread is in the user namespace of this process. A thread that cannot be inspected
// (because it is in another PID namespace or hidden from this user) has no supplementary groups and no capabilities.
// Returns an error, with a line in the log, when /proc cannot be read for another reason, such as a lack of
// descriptors.
Result<Caller> CallerOf(const Reply& reply);

// Same for any thread, by its id in this process's PID namespace; 0: none.
Result<Caller> CredentialsOf(uint32_t uid, uint32_t gid, pid_t thread);

// A process, as this process sees it.
struct ThreadOwner {
  uint64_t process = 0;  // 0: the kernel, or a process that this process does not see
  // Of its program, without a NUL if it has 16 bytes; empty if it ended before it was seen.
  std::array<char, 16> name{};
};

// Reads /proc for a thread at most once a second. Thread-safe.
class ThreadOwners {
 public:
  // A thread that has ended, or an unreadable /proc, leave the last known owner, or the thread itself without a name.
  ThreadOwner Of(int32_t thread) EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  struct Known {
    ThreadOwner owner;
    Clock::time_point read;
  };
  static constexpr size_t kMostKnown = 4096;

  Mutex mutex_;
  std::map<int32_t, Known> known_ GUARDED_BY(mutex_);
};

// A process, distinguishable after it has ended, unlike its ID, which the kernel reuses. Immutable. Holds a descriptor
// of the process (pidfd).
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
