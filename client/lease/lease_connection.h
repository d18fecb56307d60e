// SPDX-License-Identifier: Apache-2.0
// How a program requests leases from a mount (lease/protocol.h): tickets, connections, requests.
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
  std::string socket;  // name in the abstract namespace
};

// ENOTTY: not a weightfs mount, or an older version. EPERM, EOPNOTSUPP: refused by the mount's option direct=.
Result<LeaseTicket> AskForTicket(int descriptor);

// EFBIG if RLIMIT_FSIZE does not allow a request body of this size: a large body is written to a memfd.
Result<void> CheckBody(uint64_t size);

class LeaseConnections;

// A connection to a mount, and the lease that it carries. The lease ends with the connection. Externally synchronized.
class Lease {
 public:
  // Takes an idle connection from `connections`, or opens a new one, to the mount that the ticket and the open file
  // belong to. It carries no lease yet. Errors: ECONNREFUSED if no process listens (another network namespace, or the
  // mount is gone); EACCES if the listening process does not belong to the user who serves the mount, or if that user
  // is unknown, and then nothing was sent; EAGAIN if the handle already has kMost leases.
  static Result<std::unique_ptr<Lease>> Connect(const std::shared_ptr<LeaseConnections>& connections,
                                                const LeaseTicket& ticket, int descriptor);
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  using Body = std::span<const std::span<const std::byte>>;
  // Sends a request and waits for the answer. If the mount refuses the request, returns the mount's errno and text;
  // EPIPE if the mount went away. If a kCommitMany is refused because of one entry, `failed` is set to its index.
  Result<lease::Message> Call(lease::Kind kind, Body body, std::optional<uint64_t>* failed = nullptr);

  // False once the mount has ended the connection, and with it the lease. Thread-safe between two calls of Call.
  bool alive() const;

 private:
  Lease(std::shared_ptr<LeaseConnections> connections, std::string socket, UniqueFd connection)
      : connections_(std::move(connections)), socket_(std::move(socket)), connection_(std::move(connection)) {}

  const std::shared_ptr<LeaseConnections> connections_;
  const std::string socket_;
  UniqueFd connection_;  // closed after a failed call
  bool held_ = false;    // the mount holds a lease for this connection
};

// The connections of a handle that carry no lease at the moment. Thread-safe. A forked child inherits copies of the
// sockets, so a lease does not end before the child has closed them or exited.
class LeaseConnections {
 public:
  // Maximum number of concurrent leases. Each takes several descriptors, of which a process has 1,024 by default.
  static constexpr size_t kMost = 128;

 private:
  friend class Lease;
  static constexpr size_t kMostIdle = 16;

  bool Begin() EXCLUDES(mutex_);
  void End() EXCLUDES(mutex_);
  // Returns a connection whose other end is still open, or none.
  UniqueFd Take(const std::string& socket) EXCLUDES(mutex_);
  void GiveBack(std::string socket, UniqueFd connection) EXCLUDES(mutex_);

  Mutex mutex_;
  size_t in_use_ GUARDED_BY(mutex_) = 0;
  std::vector<std::pair<std::string, UniqueFd>> idle_ GUARDED_BY(mutex_);  // most recently used last
};

}  // namespace weightfs::client
