// SPDX-License-Identifier: Apache-2.0
// A file of a weightfs mount whose bytes are transferred directly between memory and the devices of the store, through
// a lease of its blocks (lease/protocol.h). The mount still handles its name, its size and its durability.
//
// A read sees the file as of the start of the lease. A write becomes visible as a whole when it is committed. Partial
// blocks at the ends of a write go through the mount, unless the whole file is written. MapOpenFile returns bytes of
// a file in memory that programs share (kMap).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "client/lease/lease_connection.h"
#include "client/open/opened_file.h"
#include "client/target.h"
#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::client {

// Takes ownership of `file`, which was opened with these options. If there is no lease, returns an error with the
// reason and leaves `file` unchanged. `in_place`: where a whole file fits in place of the old one, but not beside it,
// the old content is dropped first. Other programs then see a hole until the write is committed.
Result<std::unique_ptr<Access>> LeaseFile(std::unique_ptr<Access>& file, const OpenedFile::Options& options,
                                          bool in_place, const std::shared_ptr<LeaseConnections>& connections);

// Returns a descriptor, for reading and mapping, of a file that has the bytes [offset, offset + length) of the open one
// at the same offsets. Waits until the mount has loaded them. They are of one moment, and stay. Errors: those of
// Lease::Begin and of kMap; ENODATA: the open file ends before; EAGAIN: it is being written all the time;
// ECANCELED: `interrupted` is not empty and has returned true. `load`: false for a kMapLoaded.
Result<UniqueFd> MapOpenFile(const std::shared_ptr<LeaseConnections>& connections, int descriptor, uint64_t offset,
                             uint64_t length, bool load, const std::function<bool()>& interrupted);

}  // namespace weightfs::client
