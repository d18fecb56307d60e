// SPDX-License-Identifier: Apache-2.0
// The server side of the direct path: a socket through which programs get leases of file blocks, with descriptors of
// the devices, and then transfer the bytes themselves (lease/protocol.h). Private to fs/.
//
// Users allowed by the direct= option may use it with a ticket for a file that they have open (WEIGHTFS_IOC_LEASE). The
// ticket carries the capabilities of the thread that requested it. The kernel holds that thread in its ioctl during the
// check, so its id cannot have been reused, unlike the PID of a socket's peer. The ticket is of no use to other
// processes, so the program may send it before it knows who listens (lease::Identity). A lease belongs to its
// connection and ends with it, however its holder ends.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "fs/caller.h"
#include "fs/executor.h"
#include "fs/lease_connection.h"
#include "fs/lease_requests.h"
#include "fs/mount_options.h"
#include "fs/user_limit.h"

namespace weightfs {

class Filesystem;

// Thread-safe. One thread waits for connections and requests and uses no CPU while there are none; a few others run the
// requests that wait for devices. No thread waits for a program.
class LeaseServer {
 public:
  // `filesystem` must outlive the server. Errors are full lines.
  static Result<std::unique_ptr<LeaseServer>> Start(Filesystem& filesystem);
  ~LeaseServer();
  LeaseServer(const LeaseServer&) = delete;
  LeaseServer& operator=(const LeaseServer&) = delete;

  // Ends every connection, and with it every lease. Returns when no request is in progress. The receivers of the mount
  // must still run. Later calls do nothing.
  void Stop();

  // The name of the socket in the abstract namespace.
  const std::string& name() const { return name_; }
  ProcessTable& processes() { return processes_; }
  // Serves the request of an ioctl of this user as if it had come through the connection of that id: on the calling
  // thread if `here`, otherwise on a thread of the server; after the connection's current request if there is one.
  // Serves nothing for a kIdentify, which asks only whether the connection exists. ENOTCONN: the asking process of the
  // user has no such connection; EBUSY: another request of an ioctl waits there.
  int Ask(uint32_t user, uint64_t connection, const AskedLease& asked, bool here) EXCLUDES(mutex_);
  uint64_t leases() const { return leases_.load(); }  // number of leases held now

 private:
  explicit LeaseServer(Filesystem& filesystem);
  Result<void> Listen();
  Result<void> ListenAtPath();
  void Run();
  void Wake();
  int LookAtWriters();
  void AcceptSome(const UniqueFd& listener);
  void Accept(UniqueFd socket);
  // Serves the request of an ioctl, or else the next message of the connection. Every request comes through here.
  void Serve(const LeaseConnectionPtr& connection, const std::optional<AskedLease>& asked) EXCLUDES(mutex_);
  // The same on the executor; nothing once the server has stopped.
  void ServeLater(const LeaseConnectionPtr& connection, const std::optional<AskedLease>& asked) EXCLUDES(mutex_);
  bool HasReadAnswers(const LeaseConnectionPtr& connection);
  // Waits for the connection's next request or its end.
  void Expect(const LeaseConnectionPtr& connection, int operation);
  void Drop(uint64_t id) EXCLUDES(mutex_);
  void EndIdle(uint32_t user) EXCLUDES(mutex_);
  LeaseConnectionPtr TakeIdleLocked(std::optional<uint32_t> user) REQUIRES(mutex_);
  LeaseConnectionPtr Find(uint64_t id) EXCLUDES(mutex_);

  Filesystem& filesystem_;
  std::string name_;
  std::string path_;  // of the second listener; empty: none
  UniqueFd listener_, path_listener_, wake_, epoll_;
  ProcessTable processes_;
  UserLimit most_of_user_;  // connections
  std::atomic<uint64_t> leases_{0};
  std::atomic<bool> stopping_{false};
  std::chrono::milliseconds look_after_{0};          // Run's thread only: interval of checks for writers; 0: none
  std::chrono::steady_clock::time_point next_look_;  // Run's thread only
  bool turned_away_ = false;                         // Run's thread only: out of descriptors, and logged
  Mutex mutex_;
  std::unordered_map<uint64_t, LeaseConnectionPtr> connections_ GUARDED_BY(mutex_);
  LeaseRequests requests_;
  // Until Stop. Maps wait for devices for long, so others do not wait for them.
  std::unique_ptr<Executor> executor_ GUARDED_BY(mutex_), map_executor_ GUARDED_BY(mutex_);
  std::thread thread_;
};

// True when the direct= option allows tickets for processes of this user at all.
bool MayHoldTickets(DirectAccess direct, uint32_t uid);
// True when the direct= option allows a ticket for these credentials. User 0 must be able to open any file: without
// CAP_DAC_OVERRIDE, as in many containers, it is an ordinary user.
bool TrustsForLeases(DirectAccess direct, const Credentials& who);
// True for root, in the same sense, and for the user that the mount runs as.
inline bool RunsTheMount(const Credentials& who) { return TrustsForLeases(DirectAccess::kOwner, who); }

}  // namespace weightfs
