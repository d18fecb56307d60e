// SPDX-License-Identifier: Apache-2.0
#include "client/lease/lease_connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "client/file_limit.h"
#include "client/lease/mount_user.h"
#include "common/result.h"
#include "lease/ioctl.h"

namespace weightfs::client {
namespace {

// Converts an error of the channel to one of the library.
Error Convert(Error error) {
  if (error.code == ErrorCode::kShutdown) return {ErrorCode{EPIPE}, "the mount went away: " + error.what};
  if (error.code == ErrorCode{ECONNREFUSED}) {
    error.what = "the mount's socket for leases cannot be reached (another network namespace?): " + error.what;
  }
  return error;
}

// Any process may listen at an unused name of the abstract namespace. The mount's name is unused once the mount has
// ended, and in every other network namespace. So the kernel is asked for the user of the peer.
Result<void> CheckServer(int socket, int descriptor) {
  ASSIGN_OR_RETURN(const uid_t user, MountUser(descriptor));
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return Error{ErrorCode{errno},
                 fmt::format("no lease: cannot ask who listens at the mount's socket: {}", std::strerror(errno))};
  }
  if (peer.uid == user) return {};
  return Error{ErrorCode::kAccess,
               fmt::format("no lease: user {} serves the mount, and a process of user {} (PID {}) listens at "
                           "its socket; end that process, and mount again",
                           user, peer.uid, peer.pid)};
}

// True while the other end of an idle connection is open. It receives no messages, so readable means closed.
bool IsOpen(const UniqueFd& connection) {
  pollfd state{.fd = connection.get(), .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = poll(&state, 1, 0);
  } while (ready < 0 && errno == EINTR);
  return ready == 0;
}

}  // namespace

Result<void> CheckBody(uint64_t size) {
  const uint64_t limit = FileSizeLimit();
  if (size <= lease::kInlineBody || size <= limit) return {};
  return Error{ErrorCode::kFileTooBig,
               fmt::format("no lease: a request of {} bytes is more than the process's limit of {} "
                           "(RLIMIT_FSIZE)",
                           size, limit)};
}

Result<LeaseTicket> AskForTicket(int descriptor) {
  weightfs_lease_ticket ticket{};
  ticket.version = WEIGHTFS_IOC_VERSION;
  if (ioctl(descriptor, WEIGHTFS_IOC_LEASE, &ticket) != 0) {
    const int error_number = errno;
    const char* why = error_number == ENOTTY       ? "it is on no weightfs mount"
                      : error_number == EPERM      ? "the mount's option direct= does not trust this user"
                      : error_number == EOPNOTSUPP ? "the mount's option direct= is off"
                                                   : std::strerror(error_number);
    return Error{ErrorCode{error_number}, fmt::format("no lease: {}", why)};
  }
  if (ticket.protocol != lease::kProtocolVersion) {
    return Error{ErrorCode{EPROTO},
                 fmt::format("no lease: the mount speaks version {} of the protocol, and this library {}",
                             ticket.protocol, lease::kProtocolVersion)};
  }
  LeaseTicket out;
  std::memcpy(out.token.data(), ticket.token, out.token.size());
  out.socket.assign(ticket.socket, strnlen(ticket.socket, sizeof(ticket.socket)));
  return out;
}

Result<std::unique_ptr<Lease>> Lease::Connect(const std::shared_ptr<LeaseConnections>& connections,
                                              const LeaseTicket& ticket, int descriptor) {
  if (!connections->Begin()) {
    return Error{ErrorCode::kAgain, fmt::format("no lease: the handle has {} under way", LeaseConnections::kMost)};
  }
  // From here on the destructor of Lease maintains the count.
  std::unique_ptr<Lease> lease(new Lease(connections, ticket.socket, connections->Take(ticket.socket)));
  if (!lease->connection_) {
    auto made = lease::Connect(ticket.socket);
    if (!made.has_value()) return Convert(made.error());
    RETURN_IF_ERROR(CheckServer(made->get(), descriptor));
    lease->connection_ = std::move(*made);
  }
  return lease;
}

Lease::~Lease() {
  // If the release gets no answer, closing the connection ends the lease.
  if (held_ && connection_ && !Call(lease::Kind::kRelease, {}).has_value()) connection_ = {};
  if (connection_) connections_->GiveBack(socket_, std::move(connection_));
  connections_->End();
}

Result<lease::Message> Lease::Call(lease::Kind kind, Body body, std::optional<uint64_t>* failed) {
  if (!connection_) return Error{ErrorCode{EPIPE}, "the mount went away"};
  uint64_t size = 0;
  for (const auto& piece : body) size += piece.size();
  RETURN_IF_ERROR(CheckBody(size));
  lease::Header header;
  header.kind = static_cast<uint32_t>(kind);
  auto sent = lease::Send(connection_.get(), header, body, {});
  auto answer = sent.has_value() ? lease::Receive(connection_.get(), {}) : Result<lease::Message>(sent.error());
  if (answer.has_value() && answer->header.kind != header.kind) {
    answer = Error{ErrorCode::kInvalid,
                   fmt::format("an answer of kind {} to a request of kind {}", answer->header.kind, header.kind)};
  }
  if (!answer.has_value()) {
    // The mount may or may not hold a lease. It releases the lease when it finds the connection closed.
    connection_ = {};
    return Convert(answer.error());
  }
  const bool ends = kind == lease::Kind::kCommit || kind == lease::Kind::kCommitMany || kind == lease::Kind::kRelease;
  if (answer->header.error == 0 || ends) held_ = !ends;
  if (answer->header.error != 0) {
    lease::BodyReader refusal(answer->body());
    lease::CommitManyAnswer many;
    if (kind == lease::Kind::kCommitMany && refusal.Take(&many) && failed != nullptr) *failed = many.failed;
    std::string why(refusal.RestAsText());
    return Error{ErrorCode{answer->header.error}, why.empty() ? std::strerror(answer->header.error) : std::move(why)};
  }
  return std::move(*answer);
}

bool Lease::alive() const { return connection_ && IsOpen(connection_); }

bool LeaseConnections::Begin() {
  MutexLock lock(mutex_);
  if (in_use_ == kMost) return false;
  ++in_use_;
  return true;
}

void LeaseConnections::End() {
  MutexLock lock(mutex_);
  --in_use_;
}

UniqueFd LeaseConnections::Take(const std::string& socket) {
  MutexLock lock(mutex_);
  for (size_t i = idle_.size(); i > 0; --i) {
    if (idle_[i - 1].first != socket) continue;
    UniqueFd connection = std::move(idle_[i - 1].second);
    idle_.erase(idle_.begin() + static_cast<long>(i - 1));
    if (IsOpen(connection)) return connection;
  }
  return {};
}

void LeaseConnections::GiveBack(std::string socket, UniqueFd connection) {
  MutexLock lock(mutex_);
  if (idle_.size() == kMostIdle) idle_.erase(idle_.begin());
  idle_.emplace_back(std::move(socket), std::move(connection));
}

}  // namespace weightfs::client
