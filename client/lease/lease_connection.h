// SPDX-License-Identifier: Apache-2.0
// How a program requests leases from a mount (lease/protocol.h): tickets, connections, requests.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
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

// A connection to a mount that carries no lease.
struct IdleConnection {
  UniqueFd socket;
  std::string name;             // of the mount's socket
  dev_t device = 0;             // st_dev of the mount's files
  uint64_t id = 0;              // lease::Identity, which the mount has confirmed
  bool owes_an_answer = false;  // the answer to a kRelease has not been read
};

// A connection to a mount, and the lease that it carries. The lease ends with the connection. Externally synchronized.
class Lease {
 public:
  struct Begun;
  // Asks for a lease of the open file: kRead of `length` bytes from `offset` on, or kReserve or kReserveInPlace of
  // `length` blocks there; or for memory with bytes of it, by a kMap or kMapLoaded of such a range, which begins no
  // lease.
  // Takes one exchange with the mount, or five where the handle has no idle connection to it. Errors: those of
  // AskForTicket, Connect and Call; ECANCELED if `interrupted`, which is called every 100 ms until there is an answer,
  // has returned true.
  static Result<Begun> Begin(const std::shared_ptr<LeaseConnections>& connections, int descriptor, lease::Kind kind,
                             uint64_t offset, uint64_t length, const std::function<bool()>& interrupted = {});

  // Takes an idle connection from `connections`, or opens a new one, to the mount that the ticket and the open file
  // belong to. It carries no lease yet. Errors: ECONNREFUSED if no process listens (another network namespace, or the
  // mount is gone); EACCES if the listening process does not belong to the user who serves the mount, or if that user
  // is unknown, and then nothing was sent, or if the mount does not confirm through the open file that it has the other
  // end, and then only the ticket was sent, which is of use to this process alone; EAGAIN if the listening process does
  // not answer, or if the handle already has kMost leases.
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
  explicit Lease(std::shared_ptr<LeaseConnections> connections) : connections_(std::move(connections)) {}
  // A lease without a connection, which Open opens. EAGAIN as for Connect.
  static Result<std::unique_ptr<Lease>> Make(const std::shared_ptr<LeaseConnections>& connections);
  Result<void> Open(const LeaseTicket& ticket, int descriptor);
  Result<void> OpenAt(const std::string& name, const LeaseTicket& ticket, int descriptor);
  Result<void> Identify(const lease::Token& token, int descriptor);
  Result<void> Send(lease::Kind kind, Body body);
  Result<lease::Message> Receive(lease::Kind kind, std::optional<uint64_t>* failed = nullptr);
  Result<lease::Message> ReceiveUnless(const std::function<bool()>& interrupted, lease::Kind kind);

  const std::shared_ptr<LeaseConnections> connections_;
  IdleConnection connection_;        // its socket is closed after a failed call
  std::optional<lease::Kind> held_;  // the mount holds a lease of this kind for the connection
};

struct Lease::Begun {
  std::unique_ptr<Lease> lease;
  lease::Token token{};  // a ticket of the descriptor
  lease::Message answer;
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

  // EAGAIN for one more than kMost.
  Result<void> Begin() EXCLUDES(mutex_);
  void End() EXCLUDES(mutex_);
  // Returns a connection that fits and whose other end is still open, or none.
  template <typename Fits>
  std::optional<IdleConnection> Take(Fits fits) EXCLUDES(mutex_);
  void GiveBack(IdleConnection connection) EXCLUDES(mutex_);

  Mutex mutex_;
  size_t in_use_ GUARDED_BY(mutex_) = 0;
  std::vector<IdleConnection> idle_ GUARDED_BY(mutex_);  // most recently used last
};

}  // namespace weightfs::client
