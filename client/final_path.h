// SPDX-License-Identifier: Apache-2.0
// Helpers for replacing a file: they find its final name and copy its owner and mode.
#pragma once

#include <sys/stat.h>

#include <string>

#include "common/result.h"

namespace weightfs::client {

// Follows the symbolic links at the end of a path, so that a rename(2) replaces the file and keeps the links.
//
// Returns the name at the end of the links; that file need not exist. Errors: EACCES for a link that open(2) would
// refuse, because fs.protected_symlinks is set and the link belongs to another user in a sticky, world-writable
// directory; ELOOP for more links than the kernel follows; otherwise the errors of open(2) on the directories.
// Thread-safe.
Result<std::string> FinalPath(const std::string& path);

// Gives an open file the mode, the owner and the group of the old file, as far as the process may set them. If the
// owner or the group differs from the old one, the corresponding set-ID bit is not copied. Returns false with errno set
// if the mode cannot be set. Thread-safe.
bool TakeOver(int descriptor, const struct stat& old);

}  // namespace weightfs::client
