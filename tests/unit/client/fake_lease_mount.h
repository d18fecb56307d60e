// SPDX-License-Identifier: Apache-2.0
// A mount that gives leases, in the test's own process: an ordinary folder whose files answer WEIGHTFS_IOC_LEASE, and a
// scratch file in the place of the device. What is leased for reading is copied there first, what is committed is
// copied from there; so the folder always has what a real mount would show. An executable that has fake_lease_mount.cc
// among its sources puts an ioctl() in front of libc's, and a MountUser() (client/lease/mount_user.h) in front of the
// library's.
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

  // For the time before the first request:
  uint64_t extent_blocks = 100;            // of the longest extent; between two there are gaps
  int ticket_error = 0;                    // an errno that the ioctl answers with
  uid_t user = geteuid();                  // the server's user, as mountinfo gives it to clients
  std::map<std::string, int> file_errors;  // by name: errno's that a kReadMany answers with
  // Called with each request; an errno that is not 0 is its answer.
  std::function<int(lease::Kind)> on_request;
  // Called with what is about to be leased for reading, after it was written to the device.
  std::function<void(const std::vector<lease::Extent>&)> on_laid_out;

  // As if it were killed.
  void Stop();

  size_t requests(lease::Kind kind) const;
  size_t leases() const;       // that connections hold now
  size_t connections() const;  // that were ever made
  // True for a descriptor of a file of this folder.
  bool Has(int descriptor) const;
  // The ioctl of a descriptor; false when it is not of this folder.
  bool Ask(int descriptor, void* ticket, int* result);

 private:
  struct Connection {
    UniqueFd socket;
    std::vector<lease::Extent> reserved;
    bool held = false;
  };

  void Serve();
  bool Answer(Connection& connection);
  // The answer's body, or an errno.
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
  // Lays the content out: its extents without the holes, and a checksum for each block.
  std::vector<lease::Extent> LayOut(const Bytes& content, uint64_t first_block, std::vector<uint32_t>* checksums);
  // The bytes of reserved blocks, from the `skip`th on; nothing when a checksum is wrong.
  Bytes Collect(const std::vector<lease::Extent>& extents, uint64_t skip, std::span<const uint32_t> checksums);

  Folder folder_;
  ScratchFile device_{256 << 20};
  UniqueFd device_descriptor_;
  std::string name_;
  UniqueFd listener_;
  UniqueFd wake_[2];
  uint64_t next_block_ = 1;

  mutable Mutex mutex_;
  struct Ticket {
    std::string path;
    int descriptor = -1;
  };
  // Empty for a ticket whose descriptor is closed.
  std::string PathOf(const lease::Token& token) const;
  std::map<lease::Token, Ticket> tickets_ GUARDED_BY(mutex_);
  std::map<lease::Kind, size_t> requests_ GUARDED_BY(mutex_);
  size_t connections_ GUARDED_BY(mutex_) = 0;
  std::atomic<size_t> leases_{0};
  std::thread thread_;
};

}  // namespace weightfs::client
