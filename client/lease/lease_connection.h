// SPDX-License-Identifier: Apache-2.0
// How a program asks a mount for leases (lease/protocol.h): tickets, connections, requests.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "lease/channel.h"

namespace weightfs::client {

// The proof that the mount of an open file asks for.
struct LeaseTicket {
  lease::Token token{};
  std::string socket;  // its name in the abstract namespace
};

// ENOTTY: not on a weightfs mount, or on an older one. EPERM, EOPNOTSUPP: the mount's option direct= says no.
Result<LeaseTicket> AskForTicket(int descriptor);

// EFBIG for a request's body that the process may not write: a large one travels in a file of the kernel's memory.
Result<void> CheckBody(uint64_t size);

class LeaseConnections;

// A connection to a mount, and the lease that it carries. The lease ends with it. Externally synchronised.
class Lease {
 public:
  // Takes a connection of `connections`, or makes one, to the mount of the open file that the ticket is for. It carries
  // no lease yet. ECONNREFUSED: nobody listens (another network namespace, or the mount is gone). EACCES: the process
  // that listens is not of the user who serves the mount, or that user is unknown; nothing was sent. EAGAIN: the handle
  // has kMost under way.
  static Result<std::unique_ptr<Lease>> Connect(const std::shared_ptr<LeaseConnections>& connections,
                                                const LeaseTicket& ticket, int descriptor);
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  using Body = std::span<const std::span<const std::byte>>;
  // Sends a request and waits for its answer. What the mount refuses is an error with its errno and its words; a mount
  // that went away is EPIPE. Of a refused kCommitMany `failed` is the entry that caused it, where one did.
  Result<lease::Message> Call(lease::Kind kind, Body body, std::optional<uint64_t>* failed = nullptr);

 private:
  Lease(std::shared_ptr<LeaseConnections> connections, std::string socket, UniqueFd connection)
      : connections_(std::move(connections)), socket_(std::move(socket)), connection_(std::move(connection)) {}

  const std::shared_ptr<LeaseConnections> connections_;
  const std::string socket_;
  UniqueFd connection_;  // none after a failure of its own
  bool held_ = false;    // a lease, on the mount's side
};

// The connections of a handle that carry no lease now. Thread-safe. A child that a process forks has copies of the
// sockets, so a lease also ends only when it has closed them or ended.
class LeaseConnections {
 public:
  // Leases at once: each takes several descriptors, of which a process has 1,024 by default.
  static constexpr size_t kMost = 128;

 private:
  friend class Lease;
  static constexpr size_t kMostIdle = 16;

  bool Begin() EXCLUDES(mutex_);
  void End() EXCLUDES(mutex_);
  // One whose other end is still there; none.
  UniqueFd Take(const std::string& socket) EXCLUDES(mutex_);
  void GiveBack(std::string socket, UniqueFd connection) EXCLUDES(mutex_);

  Mutex mutex_;
  size_t in_use_ GUARDED_BY(mutex_) = 0;
  std::vector<std::pair<std::string, UniqueFd>> idle_ GUARDED_BY(mutex_);  // the last used one last
};

}  // namespace weightfs::client
