// SPDX-License-Identifier: Apache-2.0
// A Target on a file of a weightfs mount whose bytes go straight between memory and the devices of the store, by a
// lease of its blocks (lease/protocol.h). Its name, its size and its durability stay the business of the mount.
//
// A read sees the file as it is when the lease begins. A write becomes visible as a whole when it is committed; what of
// it fills no block at its ends goes through the mount, unless the whole file is written.
#pragma once

#include <memory>

#include "client/file_target.h"
#include "client/lease/lease_connection.h"
#include "client/target.h"

namespace weightfs::client {

class LeaseTarget {
 public:
  // Takes over the `file` that was opened with these options, or leaves it as it is with an error, which says why there
  // is no lease.
  static Result<std::unique_ptr<Target>> Open(std::unique_ptr<Target>& file, const FileTarget::Options& options,
                                              const std::shared_ptr<LeaseConnections>& connections);
};

}  // namespace weightfs::client
