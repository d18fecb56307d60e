// SPDX-License-Identifier: Apache-2.0
// The mount's end of the direct path: a socket through which programs get leases of the blocks of files, with
// descriptors of the devices, and then move the bytes themselves (lease/protocol.h). Private to fs/.
//
// The users of the option direct= may use it, with a ticket of a file that they have open
// (WEIGHTFS_IOC_LEASE). The ticket carries the capabilities of the thread that asked for it: the kernel holds that
// thread in its ioctl while they are looked at, so there is no process number that could be another's by then, as a
// socket's peer has. A lease is its connection's and ends with it, however its holder ends.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "fs/executor.h"
#include "fs/lease_connection.h"
#include "fs/lease_requests.h"
#include "fs/lease_tickets.h"
#include "fs/mount_options.h"

namespace weightfs {

class Filesystem;

// Thread-safe. One thread waits for connections and requests and costs nothing while there are none; a few others do
// what waits for devices. No thread waits for a program.
class LeaseServer {
 public:
  // `filesystem` outlives it. Full-line errors.
  static Result<std::unique_ptr<LeaseServer>> Start(Filesystem& filesystem);
  ~LeaseServer();
  LeaseServer(const LeaseServer&) = delete;
  LeaseServer& operator=(const LeaseServer&) = delete;

  // Ends every connection, and with it every lease; returns when no request is under way. The receivers of the mount
  // still serve meanwhile. Calls after the first do nothing.
  void Stop();

  // Of the socket, in the abstract namespace.
  const std::string& name() const { return name_; }
  LeaseTickets& tickets() { return tickets_; }
  uint64_t leases() const { return leases_.load(); }  // held now

 private:
  explicit LeaseServer(Filesystem& filesystem);
  Result<void> Listen();
  void Run();
  void Wake();
  int LookAtWriters();
  void AcceptSome();
  void Accept(UniqueFd socket);
  void Serve(const LeaseConnectionPtr& connection);
  // Waits for the connection's next request, or its end.
  void Expect(const LeaseConnectionPtr& connection, int operation);
  void Drop(int socket) EXCLUDES(mutex_);
  LeaseConnectionPtr TakeIdleLocked() REQUIRES(mutex_);
  LeaseConnectionPtr Find(int socket) EXCLUDES(mutex_);

  Filesystem& filesystem_;
  std::string name_;
  UniqueFd listener_, wake_, epoll_;
  LeaseTickets tickets_;
  std::atomic<uint64_t> leases_{0};
  std::atomic<bool> stopping_{false};
  std::chrono::milliseconds look_after_{0};          // of Run's thread: at writers; 0: there are none
  std::chrono::steady_clock::time_point next_look_;  // likewise
  bool turned_away_ = false;  // of Run's thread: connections wait for a descriptor, and that was logged
  Mutex mutex_;
  std::unordered_map<int, LeaseConnectionPtr> connections_ GUARDED_BY(mutex_);
  LeaseRequests requests_;
  std::unique_ptr<Executor> executor_;
  std::thread thread_;
};

// Whether the option direct= lets a process of this user have tickets at all.
bool MayHoldTickets(DirectAccess direct, uint32_t uid);
// Whether it gives one to whoever asks with these credentials. Root must be able to open any file: without
// CAP_DAC_OVERRIDE, as in many containers, user 0 is a user like others.
bool TrustsForLeases(DirectAccess direct, const Credentials& who);

}  // namespace weightfs
