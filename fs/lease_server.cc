// SPDX-License-Identifier: Apache-2.0
#include "fs/lease_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "common/log.h"
#include "common/start_thread.h"
#include "common/system_calls.h"
#include "fs/caller.h"
#include "fs/filesystem.h"

namespace weightfs {
namespace {

constexpr unsigned kThreads = 4;  // each holds one body of at most lease::kMaximumBody in memory
constexpr size_t kMostConnections = 1024;
constexpr size_t kMostOfUser = 896;  // connections of one user, so that root and the owner cannot exclude each other
constexpr int kBacklog = 128;
constexpr int kLockTries = 100;
constexpr int kAcceptedAtOnce = 16;  // then existing connections get their turn
// The first and the longest interval of checks for writers without a connection.
constexpr std::chrono::milliseconds kFirstLook{5}, kRarestLook{1000};
// Sources of events. Connections have larger ids.
constexpr uint64_t kWakeSource = 0, kListenerSource = 1, kPathListenerSource = 2;
constexpr uint32_t kEvents = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT;  // no events while a request is served

Error CannotStart(const char* what) {
  return {ErrorCode::kIo, fmt::format("the lease server cannot start: {}: {}; mount with -o direct=off to do without",
                                      what, std::strerror(errno))};
}

// Sets `process` to the one that connected.
Result<Credentials> PeerOf(int socket, pid_t* process) {
  ucred user{};
  socklen_t size = sizeof(user);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &user, &size) != 0) return ErrorCode{errno};
  *process = user.pid;
  Credentials peer{user.uid, user.gid};
  constexpr size_t kMostGroups = 65536;  // NGROUPS_MAX
  peer.groups.resize(32);
  while (true) {
    size = static_cast<socklen_t>(peer.groups.size() * sizeof(gid_t));
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, peer.groups.data(), &size) == 0) break;
    if (errno != ERANGE || size / sizeof(gid_t) > kMostGroups) return ErrorCode{errno};
    peer.groups.resize(size / sizeof(gid_t));  // the actual number
  }
  peer.groups.resize(size / sizeof(gid_t));
  return peer;
}

// Removes the sockets of mounts that were killed.
void RemoveDeadSockets(const std::string& directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string();
    if (!entry->path().filename().string().starts_with("weightfs-")) continue;
    const auto connected = lease::Connect(path);
    if (!connected.has_value() && connected.error().code == ErrorCode{ECONNREFUSED}) unlink(path.c_str());
  }
}

// True when the socket has a request that was not received yet. Also true when that cannot be determined.
bool HasUnread(int socket) {
  int unread = 0;
  return ioctl(socket, SIOCINQ, &unread) != 0 || unread != 0;
}

}  // namespace

bool MayHoldTickets(DirectAccess direct, uint32_t uid) {
  switch (direct) {
    case DirectAccess::kOff: return false;
    case DirectAccess::kRoot: return uid == 0;
    case DirectAccess::kOwner: return uid == 0 || uid == geteuid();
  }
  return false;
}

bool TrustsForLeases(DirectAccess direct, const Credentials& who) {
  return MayHoldTickets(direct, who.uid) && (who.uid != 0 || who.Can(CAP_DAC_OVERRIDE));
}

LeaseServer::LeaseServer(Filesystem& filesystem)
    : filesystem_(filesystem),
      most_of_user_(kMostOfUser),
      requests_(filesystem, filesystem.tickets(), [this](const LeaseConnectionPtr& connection, bool sent) {
        // Drop a connection that does not read its answers.
        sent ? Expect(connection, EPOLL_CTL_MOD) : Drop(connection->id());
      }) {}

Result<std::unique_ptr<LeaseServer>> LeaseServer::Start(Filesystem& filesystem) {
  std::unique_ptr<LeaseServer> server(new LeaseServer(filesystem));
  RETURN_IF_ERROR(server->Listen());
  {
    MutexLock lock(server->mutex_);
    for (auto* executor : {&server->executor_, &server->map_executor_}) {
      *executor = std::make_unique<Executor>(kThreads);
      RETURN_IF_ERROR((*executor)->Start());
    }
  }
  ASSIGN_OR_RETURN(server->thread_, StartThread("weightfs-lease", [raw = server.get()] { raw->Run(); }));
  return server;
}

Result<void> LeaseServer::Listen() {
  uint64_t random[2];
  if (!FillRandom(std::as_writable_bytes(std::span(random)))) return CannotStart("getrandom");
  name_ = fmt::format("weightfs-{:016x}{:016x}", random[0], random[1]);
  auto listener = lease::Listen(name_, kBacklog);
  if (!listener.has_value()) {
    return Error{ErrorCode::kIo,
                 fmt::format("the lease server cannot start: {}; mount with -o direct=off to do without",
                             ToString(listener.error()))};
  }
  listener_ = std::move(*listener);
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return CannotStart("eventfd");
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return CannotStart("epoll_create1");
  if (const auto listening = ListenAtPath(); !listening.has_value()) {
    spdlog::info("programs in other network namespaces have no direct path: {}", ToString(listening.error()));
  }
  for (const auto& [id, source] :
       {std::pair(kListenerSource, &listener_), std::pair(kPathListenerSource, &path_listener_),
        std::pair(kWakeSource, &wake_)}) {
    if (!*source) continue;
    epoll_event event{.events = EPOLLIN, .data = {.u64 = id}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, source->get(), &event) != 0) return CannotStart("epoll_ctl");
  }
  return {};
}

// Listens in a directory that other network namespaces may see, too.
Result<void> LeaseServer::ListenAtPath() {
  const std::vector<std::string> directories = lease::SocketDirectories();
  if (geteuid() != 0 && directories.size() < 2) {
    return Error{ErrorCode::kNotFound, "XDG_RUNTIME_DIR is not set"};
  }
  const std::string& directory = geteuid() == 0 ? directories[0] : directories[1];
  const bool made = mkdir(directory.c_str(), 0755) == 0;
  if (!made && errno != EEXIST) return SystemError(directory, "cannot be made");
  if (made && chmod(directory.c_str(), 0755) != 0)
    return SystemError(directory, "cannot be opened to others");  // umask
  struct stat status {};
  if (lstat(directory.c_str(), &status) != 0) return SystemError(directory, "cannot be looked at");
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Error{ErrorCode::kAccess, directory + ": not a directory that only this user may write to"};
  }
  const std::string path = fmt::format("{}/{}", directory, name_);
  // A mount that starts at the same time would take a socket that does not listen yet for dead. Anybody may lock the
  // directory, so the wait is short.
  const UniqueFd locked(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  bool alone = false;
  for (int tries = 0; tries < kLockTries && !alone; ++tries) {
    if (tries > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    alone = flock(locked.get(), LOCK_EX | LOCK_NB) == 0;
  }
  if (alone) RemoveDeadSockets(directory);
  ASSIGN_OR_RETURN(path_listener_, lease::Listen(path, kBacklog));
  path_ = path;
  // Accept checks the user of each program.
  if (chmod(path.c_str(), 0666) != 0) return SystemError(path, "cannot be opened to other users");
  return {};
}

LeaseServer::~LeaseServer() { Stop(); }

void LeaseServer::Stop() {
  if (stopping_.exchange(true)) return;
  if (thread_.joinable()) {
    Wake();
    thread_.join();
  }
  std::unique_ptr<Executor> executor, map_executor;
  {
    MutexLock lock(mutex_);
    executor = std::move(executor_);
    map_executor = std::move(map_executor_);
  }
  executor.reset();
  map_executor.reset();
  requests_.Stop();
  if (!path_.empty()) unlink(path_.c_str());
  MutexLock lock(mutex_);
  connections_.clear();
}

void LeaseServer::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

void LeaseServer::Run() {
  epoll_event events[64];
  while (true) {
    const int count = epoll_wait(epoll_.get(), events, std::size(events), LookAtWriters());
    if (count < 0 && errno != EINTR) {
      spdlog::error("the lease server has stopped: epoll_wait: {}", std::strerror(errno));
      return;
    }
    bool waiting = false, waiting_at_path = false;
    for (int index = 0; index < count; ++index) {
      const uint64_t source = events[index].data.u64;
      if (source == kWakeSource) {
        if (stopping_.load()) return;
        uint64_t woken = 0;
        if (read(wake_.get(), &woken, sizeof(woken)) != sizeof(woken)) continue;
        look_after_ = kFirstLook;
        next_look_ = {};  // check at once, whatever the interval
        continue;
      }
      if (source == kListenerSource) {
        waiting = true;
      } else if (source == kPathListenerSource) {
        waiting_at_path = true;
      } else if (const LeaseConnectionPtr connection = Find(source)) {
        // Otherwise the end of the current request expects this one again.
        if (connection->BeginRequest() == LeaseConnection::Begun::kNow) ServeLater(connection, std::nullopt);
      }
    }
    // Accept last: it may end connections that have events.
    if (waiting) AcceptSome(listener_);
    if (waiting_at_path) AcceptSome(path_listener_);
  }
}

// Checks, at increasing intervals, whether writers that have lost their connection are gone. Returns the milliseconds
// until the next call, or -1 when none remain.
int LeaseServer::LookAtWriters() {
  using std::chrono::milliseconds;
  if (look_after_ == milliseconds(0)) return -1;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return static_cast<int>(std::chrono::ceil<milliseconds>(next_look_ - now).count());
  look_after_ =
      filesystem_.store().CollectOrphanedReservations() ? std::min(look_after_ * 2, kRarestLook) : milliseconds(0);
  next_look_ = now + look_after_;
  return look_after_ == milliseconds(0) ? -1 : static_cast<int>(look_after_.count());
}

void LeaseServer::AcceptSome(const UniqueFd& listener) {
  for (int accepted = 0; accepted < kAcceptedAtOnce; ++accepted) {
    auto socket = lease::Accept(listener.get());
    if (socket.has_value()) {
      turned_away_ = false;
      Accept(std::move(*socket));
      continue;
    }
    if (socket.error().code == ErrorCode::kAgain) return;
    if (socket.error().code == ErrorCode{ECONNABORTED}) continue;  // that program has given up
    // Without a free descriptor the program stays in the queue. Retrying at once would only busy-loop.
    if (!std::exchange(turned_away_, true)) {
      spdlog::error("programs wait to be let in for leases: {}", ToString(socket.error()));
    }
    timespec pause{.tv_sec = 0, .tv_nsec = 10'000'000};
    nanosleep(&pause, nullptr);
    return;
  }
}

// Checks the peer before reading anything from it: even the descriptors in a stranger's message could block this
// thread.
void LeaseServer::Accept(UniqueFd socket) {
  pid_t process = 0;
  const auto peer = PeerOf(socket.get(), &process);
  if (!peer.has_value()) {
    spdlog::warn("a connection for leases is closed, because its user is unknown: {}", ToString(peer.error()));
    return;
  }
  // Keeps strangers out who would use up connections. It gives no rights: the process may have ended, and another one
  // may have its ID.
  const DirectAccess direct = filesystem_.options().direct;
  if (!MayHoldTickets(direct, peer->uid)) return;
  const auto caller = CredentialsOf(peer->uid, peer->gid, process);
  if (!caller.has_value() || !TrustsForLeases(direct, *caller)) return;
  auto share = most_of_user_.Take(peer->uid);
  if (!share.has_value()) {
    EndIdle(peer->uid);
    share = most_of_user_.Take(peer->uid);
  }
  if (!share.has_value()) {
    spdlog::warn("uid {}: no connection for leases: this user has {} already", peer->uid, kMostOfUser);
    return;
  }
  uint64_t id = 0;
  if (!FillRandom(std::as_writable_bytes(std::span(&id, 1))) || id <= kPathListenerSource) {
    spdlog::error("a connection for leases is closed, because it gets no number: {}", std::strerror(errno));
    return;
  }
  const auto connection =
      std::make_shared<LeaseConnection>(std::move(socket), id, *peer, process, leases_, std::move(*share));
  LeaseConnectionPtr dropped;  // destroyed after the mutex is released
  {
    MutexLock lock(mutex_);
    if (connections_.size() >= kMostConnections) dropped = TakeIdleLocked(std::nullopt);
    if (connections_.size() >= kMostConnections) {
      spdlog::warn("uid {}: no connection for leases: there are {} already", peer->uid, kMostConnections);
      return;
    }
    connections_.emplace(id, connection);
  }
  Expect(connection, EPOLL_CTL_ADD);
}

void LeaseServer::EndIdle(uint32_t user) {
  LeaseConnectionPtr ended;  // destroyed after the mutex is released
  MutexLock lock(mutex_);
  ended = TakeIdleLocked(user);
}

// Removes and returns the connection, of that user or of any, that has had no lease and no request for longest; null
// when there is none.
LeaseConnectionPtr LeaseServer::TakeIdleLocked(std::optional<uint32_t> user) {
  auto longest = connections_.end();
  std::optional<LeaseConnection::Time> since;
  for (auto at = connections_.begin(); at != connections_.end(); ++at) {
    if (user && at->second->peer().uid != *user) continue;
    const auto idle = at->second->IdleSince();
    if (!idle || (since && *since <= *idle) || HasUnread(at->second->socket())) continue;
    longest = at;
    since = idle;
  }
  if (longest == connections_.end()) return nullptr;
  LeaseConnectionPtr taken = std::move(longest->second);
  connections_.erase(longest);
  return taken;
}

void LeaseServer::Expect(const LeaseConnectionPtr& connection, int operation) {
  if (const auto asked = connection->EndRequest()) return ServeLater(connection, asked);
  epoll_event event{.events = kEvents, .data = {.u64 = connection->id()}};
  if (epoll_ctl(epoll_.get(), operation, connection->socket(), &event) == 0) return;
  spdlog::error("a program's connection for leases is lost: epoll_ctl: {}", std::strerror(errno));
  Drop(connection->id());
}

LeaseConnectionPtr LeaseServer::Find(uint64_t id) {
  MutexLock lock(mutex_);
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second;
}

void LeaseServer::Drop(uint64_t id) {
  LeaseConnectionPtr connection;
  MutexLock lock(mutex_);
  const auto node = connections_.extract(id);
  if (!node.empty()) connection = node.mapped();
  lock.Unlock();
  if (connection == nullptr) return;
  connection->Abandon();
  if (filesystem_.store().CollectOrphanedReservations()) Wake();
}

void LeaseServer::ServeLater(const LeaseConnectionPtr& connection, const std::optional<AskedLease>& asked) {
  MutexLock lock(mutex_);
  if (executor_ == nullptr) return;
  const bool maps = asked && asked->kind == lease::Kind::kMap;
  (maps ? map_executor_ : executor_)->Run(connection->peer().uid, [this, connection, asked] {
    Serve(connection, asked);
  });
}

// Drops a connection whose program has not read the last answer. It makes more than one request at a time, and could
// fill our memory.
bool LeaseServer::HasReadAnswers(const LeaseConnectionPtr& connection) {
  int unread = 0;
  if (ioctl(connection->socket(), SIOCOUTQ, &unread) != 0) {
    spdlog::error("a connection for leases is closed, because ioctl fails: {}", std::strerror(errno));
  } else if (unread == 0) {
    return true;
  }
  Drop(connection->id());
  return false;
}

int LeaseServer::Ask(uint32_t user, uint64_t connection, const AskedLease& asked, bool here) {
  LeaseConnectionPtr found;
  std::optional<CountedScope> counted;  // Stop waits for it
  {
    MutexLock lock(mutex_);
    const auto at = connections_.find(connection);
    if (at == connections_.end() || executor_ == nullptr) return ENOTCONN;
    if (at->second->peer().uid != user || !at->second->IsBoundTo(asked.process)) return ENOTCONN;
    if (asked.kind == lease::Kind::kIdentify) return 0;
    found = at->second;
    counted.emplace(requests_.open());
    // Under the mutex, so that the connection does not count as idle meanwhile.
    const auto begun = found->BeginRequest(asked);
    if (begun != LeaseConnection::Begun::kNow) return begun == LeaseConnection::Begun::kBusy ? EBUSY : 0;
  }
  here ? Serve(found, asked) : ServeLater(found, asked);
  return 0;
}

void LeaseServer::Serve(const LeaseConnectionPtr& connection, const std::optional<AskedLease>& asked) {
  if (stopping_.load() || !HasReadAnswers(connection)) return;
  if (asked) {
    const LeaseRequests::Sender sender{asked->process, connection->peer(), true};
    return requests_.Handle(connection, asked->kind, lease::BytesOf(asked->body), sender);
  }
  auto message = lease::Receive(connection->socket(), {.body = lease::kMaximumBody, .descriptors = 0});
  if (message.has_value()) {
    const LeaseRequests::Sender sender{message->sender.pid, {message->sender.uid, message->sender.gid}, false};
    const auto kind = static_cast<lease::Kind>(message->header.kind);
    // A larger body is an error, and must not wait in the queue.
    const bool maps = kind == lease::Kind::kMap && message->body().size() == sizeof(lease::ReadRequest);
    if (!maps) return requests_.Handle(connection, kind, message->body(), sender);
    const auto kept = std::make_shared<lease::Message>(*std::move(message));
    MutexLock lock(mutex_);
    if (map_executor_ == nullptr) return;
    return map_executor_->Run(connection->peer().uid, [this, connection, kind, kept, sender] {
      if (stopping_.load()) return;
      requests_.Handle(connection, kind, kept->body(), sender);
    });
  }
  if (message.error().code == ErrorCode::kAgain) return Expect(connection, EPOLL_CTL_MOD);
  if (message.error().code != ErrorCode::kShutdown) {
    spdlog::warn("uid {}: its connection for leases is ended: {}", connection->peer().uid, ToString(message.error()));
  }
  Drop(connection->id());
}

}  // namespace weightfs
