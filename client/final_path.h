// SPDX-License-Identifier: Apache-2.0
// How a file is replaced by another: under which name, and with which owner and mode.
#pragma once

#include <sys/stat.h>

#include <string>

#include "common/result.h"

namespace weightfs::client {

// Follows the symbolic links at the end of a path, for a rename(2) that replaces the file and keeps the links.
//
// Returns the name behind the links; it need not exist. Errors: EACCES for a link that open(2) would refuse, because
// fs.protected_symlinks is set and the link belongs to another user in a sticky directory that all may write; ELOOP for
// more links than the kernel follows; otherwise those of open(2) on the directories. Any thread.
Result<std::string> FinalPath(const std::string& path);

// Gives an open file the mode of the old one, and its owner and its group, each where the process may give it. Another
// owner or group does not get the bit that lets programs run in its name. False with an errno when the mode cannot be
// set. Any thread.
bool TakeOver(int descriptor, const struct stat& old);

}  // namespace weightfs::client
