// SPDX-License-Identifier: Apache-2.0
// Lease tickets: open(2) authorizes a lease of a file or directory, and a ticket carries that right of one process to
// the lease server. A ticket without a process gives no lease: it is only the key of a directory's
// WEIGHTFS_CHANGE_ATTRIBUTE. Private to fs/.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "fs/caller.h"
#include "fs/handles.h"
#include "lease/protocol.h"

namespace weightfs {

// Thread-safe.
class LeaseTickets {
 public:
  // The open file or directory of a ticket, and the process and the capabilities of the thread that requested the
  // ticket.
  struct Opened {
    std::shared_ptr<FileHandle> file;
    std::shared_ptr<DirectoryHandle> directory;
    uint64_t capabilities = 0;  // as in Credentials
    ProcessPtr process = {};
  };

  // Processes share a handle after fork(2), and a thread may vary its capabilities: each of them is another ticket.
  static constexpr size_t kMostOfHandle = 64;

  // Returns the ticket of the user and process, with these capabilities, for an open handle; the same ticket on every
  // call. Returns kIo when no random numbers are available, kAgain when the handle has kMostOfHandle others of
  // processes that have not ended.
  Result<lease::Token> Issue(const Opened& opened, uint32_t uid) EXCLUDES(mutex_);

  // Returns the handle of a ticket while it is open. Returns an empty Opened for any other user.
  Opened Find(const lease::Token& token, uint32_t uid) EXCLUDES(mutex_);

  // Invalidates the tickets of a handle that is closed.
  void Forget(const void* handle) EXCLUDES(mutex_);
  // Invalidates the tickets of processes that have ended.
  void ForgetEnded() EXCLUDES(mutex_);

 private:
  void ForgetEndedLocked(std::vector<lease::Token>* issued) REQUIRES(mutex_);

  struct Ticket {
    std::weak_ptr<FileHandle> file;
    std::weak_ptr<DirectoryHandle> directory;
    uint32_t uid = 0;
    uint64_t capabilities = 0;
    ProcessPtr process;
  };

  Mutex mutex_;
  std::map<lease::Token, Ticket> tickets_ GUARDED_BY(mutex_);
  std::unordered_map<const void*, std::vector<lease::Token>> of_handle_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
