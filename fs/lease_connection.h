// SPDX-License-Identifier: Apache-2.0
// A program's connection to the lease server, with its lease. Private to fs/.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/unique_fd.h"
#include "fs/caller.h"
#include "fs/user_limit.h"
#include "lease/channel.h"
#include "store/file/lease.h"

namespace weightfs {

// One descriptor per device of a store, by DeviceId. Lease holders get copies.
using LeaseDevices = std::vector<UniqueFd>;
using LeaseDevicesPtr = std::shared_ptr<const LeaseDevices>;

// A request that a program made by an ioctl on the open file.
struct AskedLease {
  lease::Kind kind{};
  lease::ReadRequest body;  // a ReserveRequest has the same layout
  pid_t process = 0;        // that asked
};
static_assert(sizeof(lease::ReserveRequest) == sizeof(lease::ReadRequest));

// Thread-safe. Destroying the connection ends its lease. `leases` counts the leases held and must outlive it.
class LeaseConnection {
 public:
  // `share` is of the connections of the peer's user.
  LeaseConnection(UniqueFd socket, uint64_t id, Credentials peer, pid_t process, std::atomic<uint64_t>& leases,
                  UserLimit::Share share)
      : socket_(std::move(socket)),
        id_(id),
        peer_(std::move(peer)),
        process_(process),
        leases_(leases),
        share_(std::move(share)) {}
  ~LeaseConnection() { Abandon(); }
  LeaseConnection(const LeaseConnection&) = delete;
  LeaseConnection& operator=(const LeaseConnection&) = delete;

  using Time = std::chrono::steady_clock::time_point;

  int socket() const { return socket_.get(); }
  uint64_t id() const { return id_; }  // lease::Identity: random
  const Credentials& peer() const { return peer_; }
  pid_t process() const { return process_; }  // that connected; it may have ended, so this is for statistics only
  // Binds the connection to the process that has presented a ticket of its own.
  void Bind(ProcessPtr holder) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    holder_ = std::move(holder);
  }
  // True if the connection is bound to the process with this ID, and that process has not ended.
  bool IsBoundTo(pid_t process) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return holder_ != nullptr && holder_->Is(process);
  }

  // Begins a read or write lease; the connection must have none. A read lease keeps `devices` open.
  void Begin(SpacePin pin, BlockReservation grant, LeaseDevicesPtr devices) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    pin_ = std::move(pin);
    grant_ = std::move(grant);
    devices_ = std::move(devices);
    held_ = true;
    ++leases_;
  }
  enum class Begun : unsigned char { kNow, kLater, kBusy };
  // A connection serves one request at a time: a message (nullopt), or one that came by an ioctl. kLater: the end of
  // the current request begins this one. A message stays in the socket until then, and one request of an ioctl waits
  // here. kBusy: one waits already.
  Begun BeginRequest(const std::optional<AskedLease>& asked = std::nullopt) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!std::exchange(serving_, true)) return Begun::kNow;
    if (asked && asked_) return Begun::kBusy;
    if (asked) asked_ = asked;
    return Begun::kLater;
  }
  // Returns the request of an ioctl that waited for this end, which begins now.
  std::optional<AskedLease> EndRequest() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    serving_ = asked_.has_value();
    return std::exchange(asked_, std::nullopt);
  }
  // The time since which the connection has had neither a lease nor a request; nullopt while it has one.
  std::optional<Time> IdleSince() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (serving_ || held_) return std::nullopt;
    return idle_since_;
  }
  bool held() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return held_;
  }
  // Ends the lease after its holder has reported that it has no transfers in progress. Returns the blocks of a write
  // lease; none for a read lease.
  BlockReservation TakeGrant() EXCLUDES(mutex_) {
    BlockReservation grant = Take();
    grant.EndWrites();
    return grant;
  }
  // Ends the connection, and its lease without a report of its holder. The holder sees the end before others get blocks
  // that were leased. The blocks of a write lease are freed when nobody can write them any more.
  void Abandon() EXCLUDES(mutex_) {
    shutdown(socket_.get(), SHUT_RDWR);  // fails only if the holder has ended the connection
    Take();
  }

 private:
  BlockReservation Take() EXCLUDES(mutex_) {
    SpacePin pin;  // released after the mutex
    LeaseDevicesPtr devices;
    MutexLock lock(mutex_);
    if (!held_) return {};
    held_ = false;
    --leases_;
    idle_since_ = std::chrono::steady_clock::now();
    std::swap(devices, devices_);
    pin = std::move(pin_);
    return std::move(grant_);
  }

  const UniqueFd socket_;
  const uint64_t id_;
  const Credentials peer_;
  const pid_t process_;
  std::atomic<uint64_t>& leases_;
  const UserLimit::Share share_;
  mutable Mutex mutex_;
  ProcessPtr holder_ GUARDED_BY(mutex_);
  bool serving_ GUARDED_BY(mutex_) = false;
  std::optional<AskedLease> asked_ GUARDED_BY(mutex_);
  Time idle_since_ GUARDED_BY(mutex_) = std::chrono::steady_clock::now();
  SpacePin pin_ GUARDED_BY(mutex_);
  BlockReservation grant_ GUARDED_BY(mutex_);
  LeaseDevicesPtr devices_ GUARDED_BY(mutex_);
  bool held_ GUARDED_BY(mutex_) = false;
};

using LeaseConnectionPtr = std::shared_ptr<LeaseConnection>;

}  // namespace weightfs
