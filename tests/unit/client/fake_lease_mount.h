// SPDX-License-Identifier: Apache-2.0
// A mount that grants leases, in the test's own process: an ordinary folder whose files answer WEIGHTFS_IOC_LEASE, and
// a scratch file as the device. A range leased for reading is copied there first, and a committed range is copied back,
// so the folder always shows the content that a real mount would show. In an executable with fake_lease_mount.cc among
// its sources, its ioctl() replaces libc's, and its MountUser() (client/lease/mount_user.h) replaces the library's.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "lease/channel.h"
#include "tests/support/scratch_file.h"
#include "tests/unit/client/files.h"

namespace weightfs::client {

class FakeLeaseMount {
 public:
  FakeLeaseMount();
  ~FakeLeaseMount();

  std::string operator/(const std::string& name) const { return folder_ / name; }
  std::string folder() const { return folder_ / "."; }
  size_t entries() const { return folder_.entries(); }
  std::string device() const { return device_.path(); }

  // To be set before the first request:
  uint64_t extent_blocks = 100;            // maximum length of an extent; extents are separated by gaps
  uint32_t verified = 0;                   // of all extents
  int ticket_error = 0;                    // errno that the ioctl returns
  int change_error = 0;                    // errno of setting WEIGHTFS_CHANGE_ATTRIBUTE
  bool impostor = false;                   // the socket belongs to a process that knows no identity of a connection
  uid_t user = geteuid();                  // the server's user, which clients read from mountinfo
  std::map<std::string, int> file_errors;  // by name: errnos that a kReadMany returns
  // Called with each request. A result other than 0 is returned as the request's errno.
  std::function<int(lease::Kind)> on_request;
  // Called with the extents that are about to be leased for reading, after they were written to the device.
  std::function<void(const std::vector<lease::Extent>&)> on_laid_out;

  std::atomic<bool> durable = false;  // of the last kCommitMany

  // Simulates a kill of the mount.
  void Stop();

  size_t requests(lease::Kind kind) const;
  size_t leases() const;                  // number of connections that hold a lease now
  // Waits until no more hold one: a release is sent without waiting for its answer.
  void WaitForLeases(size_t most) const;
  void WaitForNoLease() const { WaitForLeases(0); }
  size_t connections() const;             // number of connections made so far
  size_t asked() const { return asks_; }  // number of requests that came by ioctl
  // True for a descriptor of a file in this folder.
  bool Has(int descriptor) const;
  // Answer the ioctls for a descriptor. They return false if the descriptor is not in this folder.
  bool Ask(int descriptor, void* ticket, int* result);
  bool AskLease(int descriptor, void* request, int* result);

 private:
  struct Connection {
    UniqueFd socket;
    uint64_t id = 0;
    std::vector<lease::Extent> reserved;
    bool held = false;
  };

  // A request by an ioctl.
  struct Asked {
    uint64_t connection = 0;
    lease::Kind kind{};
    lease::ReadRequest request;  // or a lease::ReserveRequest of the same layout
  };

  void Serve();
  bool Receive(Connection& connection);
  bool Answer(Connection& connection, lease::Kind kind, lease::BodyReader body);
  void CountLease(bool begins);
  lease::Token MakeTicket(const std::string& path, int descriptor);
  // The body of the answer, or an errno.
  struct Reply {
    int error = 0;
    std::vector<std::byte> body;
    bool devices = false;
  };
  Reply Carry(Connection& connection, lease::Kind kind, lease::BodyReader body);
  Reply Read(Connection& connection, lease::BodyReader body);
  Reply Reserve(Connection& connection, lease::BodyReader body);
  Reply Commit(Connection& connection, lease::BodyReader body);
  Reply ReadMany(Connection& connection, lease::BodyReader body);
  Reply CommitMany(Connection& connection, lease::BodyReader body);
  std::vector<lease::Extent> Place(uint64_t blocks);
  // Writes the content to the device. Returns its extents without holes, and one checksum per block.
  std::vector<lease::Extent> LayOut(const Bytes& content, uint64_t first_block, std::vector<uint32_t>* checksums);
  // Reads the bytes of reserved blocks, from block `skip` on. Returns nothing if a checksum is wrong.
  Bytes Collect(const std::vector<lease::Extent>& extents, uint64_t skip, std::span<const uint32_t> checksums);

  Folder folder_;
  ScratchFile device_{256 << 20};
  UniqueFd device_descriptor_;
  std::string name_;
  UniqueFd listener_;
  UniqueFd wake_[2];
  UniqueFd asked_[2];  // a pipe of Asked
  uint64_t next_block_ = 1;

  mutable Mutex mutex_;
  struct Ticket {
    std::string path;
    int descriptor = -1;
  };
  // Empty if the ticket's descriptor has been closed.
  std::string PathOf(const lease::Token& token) const;
  std::map<lease::Token, Ticket> tickets_ GUARDED_BY(mutex_);
  std::map<lease::Kind, size_t> requests_ GUARDED_BY(mutex_);
  size_t connections_ GUARDED_BY(mutex_) = 0;
  std::atomic<size_t> leases_{0}, asks_{0};
  std::thread thread_;
};

}  // namespace weightfs::client
