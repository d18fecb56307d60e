// SPDX-License-Identifier: Apache-2.0
// Opens the files of a handle's operations: from a name to a target whose bytes can be transferred.
//
//   open the file ──→ list its range ──→ prepare it ──→ take a lease ──→ open
//                           └──→ an earlier operation has the range: waiting
//   its turn: open the file again ──→ prepare it ──→ take a lease ──→ open
//
// Every operation begins on the caller's thread, so that an error of open(2) is reported at once. A waiting one opens
// its file again at its turn, on a thread of the handle, because its path may name another file by then.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "client/handle.h"
#include "client/lease/lease_connection.h"
#include "client/open/opened_file.h"
#include "client/pending_ranges.h"
#include "client/target.h"
#include "common/result.h"

namespace weightfs::client {

// Makes a relative path absolute. Returns it unchanged if that is not possible.
std::string FromTheRoot(const std::string& path);

// Identifies a path rather than a file when operations are ordered. Operations on paths with equal ids wait for each
// other.
FileId IdOfPath(const std::string& path);

// EDEADLK: the operation would wait for a SaveMany or LoadMany of its own thread.
Error HeldByThisThread(const std::string& path, uint64_t offset);

// Thread-safe.
class Opener {
 public:
  struct Request {
    OpenedFile::Options file;  // its offset is final once the file is open
    bool may_lease = true;
    bool ordered = true;  // false: the caller has listed the file
  };
  struct Opened {
    // Null if the operation is not ordered. Destroyed after the target, so that the operations waiting for it see the
    // result of a rollback.
    std::shared_ptr<PendingRanges::Registration> registration = nullptr;
    // Empty if the operation waits for a file that an earlier one may create.
    Target target = {};
    bool waits() const { return registration != nullptr && registration->waits(); }
  };

  explicit Opener(Direct direct) : direct_(direct) {}

  Result<Opened> Open(Request& request) const { return Open(request, /*first=*/request.ordered); }
  // At the turn of an operation that waited.
  Result<Target> OpenAgain(Request& request) const;

  PendingRanges& ranges() const { return *ranges_; }
  const std::shared_ptr<LeaseConnections>& connections() const { return connections_; }

 private:
  // `first`: the operation is not listed yet.
  Result<Opened> Open(Request& request, bool first) const;
  // `named`: the id of the path. Null if the operation is not ordered.
  Result<std::shared_ptr<PendingRanges::Registration>> List(const OpenedFile::Options& file,
                                                            std::optional<FileId> id, FileId named) const;
  // Adds what a prepared file lacks: a lease, if there is one, its second descriptor, and the gathering of ranges.
  Result<Target> Complete(std::unique_ptr<OpenedFile> file, const Request& request) const;

  const Direct direct_;
  const std::shared_ptr<PendingRanges> ranges_ = std::make_shared<PendingRanges>();
  const std::shared_ptr<LeaseConnections> connections_ = std::make_shared<LeaseConnections>();
};

}  // namespace weightfs::client
