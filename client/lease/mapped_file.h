// SPDX-License-Identifier: Apache-2.0
// Bytes of a file on a mount, in memory that programs share (lease/protocol.h, kMap).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "client/lease/lease_connection.h"
#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::client {

// Returns a descriptor, for reading and mapping, of a file that has the bytes [offset, offset + length) of the open one
// at the same offsets. Waits until the mount has loaded them. They are of one moment, and stay. Errors: those of
// Lease::Begin and of kMap; ENODATA: the open file ends before; EAGAIN: it is being written all the time;
// ECANCELED: `interrupted` is not empty and has returned true. `load`: false for a kMapLoaded.
Result<UniqueFd> MapOpenFile(const std::shared_ptr<LeaseConnections>& connections, int descriptor, uint64_t offset,
                             uint64_t length, bool load, const std::function<bool()>& interrupted);

}  // namespace weightfs::client
