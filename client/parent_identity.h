// SPDX-License-Identifier: Apache-2.0
// Which directory of which store an open directory is in. Not part of libweightfs.
#pragma once

#include <string>

namespace weightfs::client {

// Identifies the parent of an open directory on every host, and wherever it is mounted: the id of the store and the
// inode's number, "00112233445566778899aabbccddeeff:42". Empty: the parent is not on a weightfs mount, or not readable.
std::string ParentIdentity(int opened);

}  // namespace weightfs::client
