// SPDX-License-Identifier: Apache-2.0
// One program's connection to the lease server, with the lease that it holds. Private to fs/.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/unique_fd.h"
#include "lease/channel.h"
#include "store/file/lease.h"

namespace weightfs {

// A descriptor of each device of a store, by DeviceId, of which holders of leases get copies.
using LeaseDevices = std::vector<UniqueFd>;
using LeaseDevicesPtr = std::shared_ptr<const LeaseDevices>;

// Thread-safe. Its end is the end of its lease. `leases` counts those that are held and outlives it.
class LeaseConnection {
 public:
  LeaseConnection(UniqueFd socket, Credentials peer, std::atomic<uint64_t>& leases)
      : socket_(std::move(socket)), peer_(std::move(peer)), leases_(leases) {}
  ~LeaseConnection() { Abandon(); }
  LeaseConnection(const LeaseConnection&) = delete;
  LeaseConnection& operator=(const LeaseConnection&) = delete;

  using Time = std::chrono::steady_clock::time_point;

  int socket() const { return socket_.get(); }
  const Credentials& peer() const { return peer_; }

  // A lease for reading or for writing begins; there was none. `devices`, of readers, stay open as long.
  void Begin(SpacePin pin, BlockReservation grant, LeaseDevicesPtr devices) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    pin_ = std::move(pin);
    grant_ = std::move(grant);
    devices_ = std::move(devices);
    held_ = true;
    ++leases_;
  }
  // A request of the connection is served, and is no more.
  void BeginRequest() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    serving_ = true;
  }
  void EndRequest() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    serving_ = false;
  }
  // Since when it has had neither a lease nor a request; none while it has.
  std::optional<Time> IdleSince() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (serving_ || held_) return std::nullopt;
    return idle_since_;
  }
  bool held() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return held_;
  }
  // Ends the lease, whose holder says that he transfers nothing any more; the blocks that it had for writing, none
  // where it had not, are the caller's.
  BlockReservation TakeGrant() EXCLUDES(mutex_) {
    BlockReservation grant = Take();
    grant.EndWrites();
    return grant;
  }
  // Ends the lease without a word of its holder: blocks for writing are free when nobody can write them any more.
  void Abandon() EXCLUDES(mutex_) { Take(); }

 private:
  BlockReservation Take() EXCLUDES(mutex_) {
    SpacePin pin;  // goes without the mutex
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
  const Credentials peer_;
  std::atomic<uint64_t>& leases_;
  mutable Mutex mutex_;
  bool serving_ GUARDED_BY(mutex_) = false;
  Time idle_since_ GUARDED_BY(mutex_) = std::chrono::steady_clock::now();
  SpacePin pin_ GUARDED_BY(mutex_);
  BlockReservation grant_ GUARDED_BY(mutex_);
  LeaseDevicesPtr devices_ GUARDED_BY(mutex_);
  bool held_ GUARDED_BY(mutex_) = false;
};

using LeaseConnectionPtr = std::shared_ptr<LeaseConnection>;

}  // namespace weightfs
