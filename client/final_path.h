// SPDX-License-Identifier: Apache-2.0
// Which name a file is replaced under when it is replaced through symbolic links.
#pragma once

#include <string>

#include "common/result.h"

namespace weightfs::client {

// Follows the symbolic links at the end of a path, for a rename(2) that replaces the file and keeps the links.
//
// Returns the name behind the links; it need not exist. Errors: EACCES for a link that open(2) would refuse, because
// fs.protected_symlinks is set and the link belongs to another user in a sticky directory that all may write; ELOOP for
// more links than the kernel follows; otherwise those of open(2) on the directories. Any thread.
Result<std::string> FinalPath(const std::string& path);

}  // namespace weightfs::client
