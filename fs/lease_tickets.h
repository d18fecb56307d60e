// SPDX-License-Identifier: Apache-2.0
// Who may ask for leases of what: open(2) has decided it, a ticket carries it to the lease server. Private to fs/.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "fs/handles.h"
#include "lease/protocol.h"

namespace weightfs {

// Thread-safe.
class LeaseTickets {
 public:
  // The open file or directory of a ticket, and the capabilities of the thread that asked for the ticket.
  struct Opened {
    std::shared_ptr<FileHandle> file;
    std::shared_ptr<DirectoryHandle> directory;
    uint64_t capabilities = 0;  // as Credentials has them
  };

  // The ticket of the user, with these capabilities, for an open handle; the same each time. kIo without random
  // numbers.
  Result<lease::Token> Issue(const Opened& opened, uint32_t uid) EXCLUDES(mutex_);

  // What the ticket was asked by, while it is open; nothing for anybody but the user who asked.
  Opened Find(const lease::Token& token, uint32_t uid) EXCLUDES(mutex_);

  // The handle is closed: its tickets are good for nothing from here on.
  void Forget(const void* handle) EXCLUDES(mutex_);

 private:
  struct Ticket {
    std::weak_ptr<FileHandle> file;
    std::weak_ptr<DirectoryHandle> directory;
    uint32_t uid = 0;
    uint64_t capabilities = 0;
  };

  Mutex mutex_;
  std::map<lease::Token, Ticket> tickets_ GUARDED_BY(mutex_);
  std::unordered_map<const void*, std::vector<lease::Token>> of_handle_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
