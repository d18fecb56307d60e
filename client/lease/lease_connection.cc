// SPDX-License-Identifier: Apache-2.0
#include "client/lease/lease_connection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "client/file_limit.h"
#include "client/lease/mount_user.h"
#include "common/result.h"
#include "common/system_calls.h"
#include "lease/ioctl.h"

namespace weightfs::client {
namespace {

constexpr lease::ReceiveLimits kSmallAnswer{.body = lease::kInlineBody, .descriptors = 0};

// Converts an error of the channel to one of the library.
Error Convert(Error error) {
  if (error.code == ErrorCode::kShutdown) {
    return {ErrorCode{EPIPE},
            "the mount went away, or it has too many connections for leases (1,024, of which 896 of one user): " +
                error.what};
  }
  if (error.code == ErrorCode::kAgain) {
    error.what = fmt::format("the process that listens at the mount's socket has not answered for {} s: {}",
                             lease::kPatience.count(), error.what);
  }
  if (error.code == ErrorCode{ECONNREFUSED}) {
    error.what =
        "the mount's socket for leases cannot be reached (in another network namespace the program must see "
        "/run/weightfs): " +
        error.what;
  }
  return error;
}

// Any process may listen at an unused name of the abstract namespace. The mount's name is unused once the mount has
// ended, and in every other network namespace. A process of another user gets no message, and nobody waits for its
// answer. One of the same user cannot prove to be the mount (CheckIdentity).
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

// True while the other end of a connection without an expected answer is open. It receives no messages, so readable
// means closed.
bool IsOpen(const UniqueFd& connection) {
  pollfd state{.fd = connection.get(), .events = POLLIN, .revents = 0};
  return RepeatInterrupted([&] { return poll(&state, 1, 0); }) == 0;
}

bool Maps(lease::Kind kind) { return kind == lease::Kind::kMap || kind == lease::Kind::kMapLoaded; }

// Reads the answer that an idle connection owes, which has usually arrived. Returns false if the connection has ended.
bool MakeReady(IdleConnection& connection) {
  if (std::exchange(connection.owes_an_answer, false)) {
    const auto answer = lease::Receive(connection.socket.get(), {});
    if (!answer.has_value() || answer->header.kind != static_cast<uint32_t>(lease::Kind::kRelease)) return false;
  }
  return IsOpen(connection.socket);
}

// Returns st_dev, without a request to the mount; 0 if the kernel does not tell.
dev_t DeviceOf(int descriptor) {
  struct statx status {};
  if (statx(descriptor, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &status) != 0) return 0;
  return makedev(status.stx_dev_major, status.stx_dev_minor);
}

Error RefusedTicket(int error_number) {
  const char* why = error_number == ENOTTY       ? "it is on no weightfs mount"
                    : error_number == EPERM      ? "the mount's option direct= does not trust this user"
                    : error_number == EOPNOTSUPP ? "the mount's option direct= is off"
                    : error_number == ESRCH      ? "the mount cannot identify processes; its log has the reason"
                    : error_number == EAGAIN     ? "too many processes have leases of this mount or file; try again"
                                                 : std::strerror(error_number);
  return {ErrorCode{error_number}, fmt::format("no lease: {}", why)};
}

// Asks the mount through the file whether the other end of the connection of this id belongs to it.
Result<void> CheckIdentity(int descriptor, uint64_t id) {
  weightfs_lease_request asked{
      .version = WEIGHTFS_IOC_VERSION, .kind = static_cast<uint32_t>(lease::Kind::kIdentify), .connection = id};
  if (ioctl(descriptor, WEIGHTFS_IOC_LEASE_REQUEST, &asked) == 0) return {};
  if (errno == EINVAL) return Error{ErrorCode{EPROTO}, "no lease: the mount is of an older version; mount it again"};
  if (errno != ENOTCONN) return RefusedTicket(errno);
  return Error{ErrorCode::kAccess, "no lease: the process that listens at the mount's socket is not the mount; "
                                   "end that process, and mount again"};
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
  if (ioctl(descriptor, WEIGHTFS_IOC_LEASE, &ticket) != 0) return RefusedTicket(errno);
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

Result<std::unique_ptr<Lease>> Lease::Make(const std::shared_ptr<LeaseConnections>& connections) {
  RETURN_IF_ERROR(connections->Begin());
  return std::unique_ptr<Lease>(new Lease(connections));  // its destructor maintains the count
}

Result<std::unique_ptr<Lease>> Lease::Connect(const std::shared_ptr<LeaseConnections>& connections,
                                              const LeaseTicket& ticket, int descriptor) {
  ASSIGN_OR_RETURN(auto lease, Make(connections));
  RETURN_IF_ERROR(lease->Open(ticket, descriptor));
  return lease;
}

Result<void> Lease::Open(const LeaseTicket& ticket, int descriptor) {
  if (auto idle = connections_->Take([&](const IdleConnection& other) { return other.name == ticket.socket; })) {
    connection_ = *std::move(idle);
    return {};
  }
  // By its name in the abstract namespace, of which each network namespace has one of its own, or by a path.
  Result<void> opened = OpenAt(ticket.socket, ticket, descriptor);
  for (const std::string& directory : lease::SocketDirectories()) {
    if (opened.has_value()) return opened;
    if (OpenAt(fmt::format("{}/{}", directory, ticket.socket), ticket, descriptor).has_value()) return {};
  }
  return opened;  // the first error
}

Result<void> Lease::OpenAt(const std::string& name, const LeaseTicket& ticket, int descriptor) {
  connection_ = {};
  auto connected = lease::Connect(name);
  if (!connected.has_value()) return Convert(connected.error());
  RETURN_IF_ERROR(CheckServer(connected->get(), descriptor));
  connection_ = {.socket = *std::move(connected), .name = ticket.socket, .device = DeviceOf(descriptor)};
  const Result<void> identified = Identify(ticket.token, descriptor);
  if (!identified.has_value()) connection_ = {};
  return identified;
}

Result<void> Lease::Identify(const lease::Token& token, int descriptor) {
  const lease::IdentifyRequest request{token};
  ASSIGN_OR_RETURN(const auto answer, Call(lease::Kind::kIdentify, std::array{lease::BytesOf(request)}));
  lease::Identity identity;
  if (!lease::BodyReader(answer.body()).Take(&identity)) {
    return Error{ErrorCode{EPROTO}, "no lease: the mount's socket has answered without an identity"};
  }
  RETURN_IF_ERROR(CheckIdentity(descriptor, identity.connection));
  connection_.id = identity.connection;
  return lease::WaitWithoutLimit(connection_.socket.get());
}

Result<Lease::Begun> Lease::Begin(const std::shared_ptr<LeaseConnections>& connections, int descriptor,
                                  lease::Kind kind, uint64_t offset, uint64_t length,
                                  const std::function<bool()>& interrupted) {
  Begun begun;
  ASSIGN_OR_RETURN(begun.lease, Make(connections));
  const dev_t device = DeviceOf(descriptor);
  const auto of_mount = [device](const IdleConnection& other) { return other.device == device; };
  if (auto idle = connections->Take(of_mount)) {
    begun.lease->connection_ = *std::move(idle);
    weightfs_lease_request asked{.version = WEIGHTFS_IOC_VERSION,
                                 .kind = static_cast<uint32_t>(kind),
                                 .connection = begun.lease->connection_.id,
                                 .offset = offset,
                                 .length = length};
    if (ioctl(descriptor, WEIGHTFS_IOC_LEASE_REQUEST, &asked) == 0) {
      std::memcpy(begun.token.data(), asked.token, begun.token.size());
      ASSIGN_OR_RETURN(begun.answer, begun.lease->ReceiveUnless(interrupted, kind));
      return begun;
    }
    // Another mount may have the device number by now.
    if (errno != ENOTCONN && errno != ENOTTY) return RefusedTicket(errno);
    begun.lease->connection_ = {};
  }
  ASSIGN_OR_RETURN(const LeaseTicket ticket, AskForTicket(descriptor));
  begun.token = ticket.token;
  RETURN_IF_ERROR(begun.lease->Open(ticket, descriptor));
  const lease::ReadRequest request{ticket.token, offset, length};  // a ReserveRequest has the same layout
  static_assert(sizeof(lease::ReserveRequest) == sizeof(request));
  RETURN_IF_ERROR(begun.lease->Send(kind, std::array{lease::BytesOf(request)}));
  ASSIGN_OR_RETURN(begun.answer, begun.lease->ReceiveUnless(interrupted, kind));
  return begun;
}

// A connection that is closed ends its lease, too.
Lease::~Lease() {
  if (held_ == lease::Kind::kReserve || held_ == lease::Kind::kReserveInPlace) {
    if (!Call(lease::Kind::kRelease, {}).has_value()) connection_.socket = {};
  } else if (held_) {
    connection_.owes_an_answer = Send(lease::Kind::kRelease, {}).has_value();
    if (!connection_.owes_an_answer) connection_.socket = {};
  }
  if (connection_.socket) connections_->GiveBack(std::move(connection_));
  connections_->End();
}

Result<lease::Message> Lease::Call(lease::Kind kind, Body body, std::optional<uint64_t>* failed) {
  RETURN_IF_ERROR(Send(kind, body));
  return Receive(kind, failed);
}

Result<void> Lease::Send(lease::Kind kind, Body body) {
  if (!connection_.socket) return Error{ErrorCode{EPIPE}, "the mount went away"};
  uint64_t size = 0;
  for (const auto& piece : body) size += piece.size();
  RETURN_IF_ERROR(CheckBody(size));
  lease::Header header;
  header.kind = static_cast<uint32_t>(kind);
  auto sent = lease::Send(connection_.socket.get(), header, body, {});
  if (sent.has_value()) return {};
  connection_.socket = {};
  return Convert(sent.error());
}

Result<lease::Message> Lease::Receive(lease::Kind kind, std::optional<uint64_t>* failed) {
  // An identity may come from a stranger.
  const bool stranger = kind == lease::Kind::kIdentify;
  auto answer = lease::Receive(connection_.socket.get(), stranger ? kSmallAnswer : lease::ReceiveLimits{});
  if (answer.has_value() && answer->header.kind != static_cast<uint32_t>(kind)) {
    answer = Error{ErrorCode::kInvalid, fmt::format("an answer of kind {} to a request of kind {}", answer->header.kind,
                                                    static_cast<uint32_t>(kind))};
  }
  if (!answer.has_value()) {
    // The mount may or may not hold a lease. It releases the lease when it finds the connection closed.
    connection_.socket = {};
    return Convert(answer.error());
  }
  const bool ends = kind == lease::Kind::kCommit || kind == lease::Kind::kCommitMany || kind == lease::Kind::kRelease;
  if (ends) held_.reset();
  const bool begins = !ends && kind != lease::Kind::kIdentify && !Maps(kind);
  if (answer->header.error == 0 && begins) held_ = kind;
  if (answer->header.error != 0) {
    lease::BodyReader refusal(answer->body());
    lease::CommitManyAnswer many;
    if (kind == lease::Kind::kCommitMany && refusal.Take(&many) && failed != nullptr) *failed = many.failed;
    std::string why(refusal.RestAsText());
    return Error{ErrorCode{answer->header.error}, why.empty() ? std::strerror(answer->header.error) : std::move(why)};
  }
  return std::move(*answer);
}

// The mount may take long to answer, and ends what it does when it finds the connection closed.
Result<lease::Message> Lease::ReceiveUnless(const std::function<bool()>& interrupted, lease::Kind kind) {
  constexpr int kPauseMs = 100;
  pollfd state{.fd = connection_.socket.get(), .events = POLLIN, .revents = 0};
  while (interrupted && RepeatInterrupted([&] { return poll(&state, 1, kPauseMs); }) == 0) {
    if (!interrupted()) continue;
    connection_.socket = {};
    return Error{ErrorCode::kCancelled, "a signal has ended the load"};
  }
  return Receive(kind);
}

bool Lease::alive() const { return connection_.socket && IsOpen(connection_.socket); }

Result<void> LeaseConnections::Begin() {
  MutexLock lock(mutex_);
  if (in_use_ == kMost) {
    return Error{ErrorCode::kAgain, fmt::format("no lease: the handle has {} under way", kMost)};
  }
  ++in_use_;
  return {};
}

void LeaseConnections::End() {
  MutexLock lock(mutex_);
  --in_use_;
}

template <typename Fits>
std::optional<IdleConnection> LeaseConnections::Take(Fits fits) {
  while (true) {
    std::optional<IdleConnection> found;
    {
      MutexLock lock(mutex_);
      const auto last = std::find_if(idle_.rbegin(), idle_.rend(), fits);
      if (last == idle_.rend()) return std::nullopt;
      found = std::move(*last);
      idle_.erase(std::next(last).base());
    }
    if (MakeReady(*found)) return found;
  }
}

void LeaseConnections::GiveBack(IdleConnection connection) {
  MutexLock lock(mutex_);
  if (idle_.size() == kMostIdle) idle_.erase(idle_.begin());
  idle_.push_back(std::move(connection));
}

}  // namespace weightfs::client
