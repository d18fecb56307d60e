// SPDX-License-Identifier: Apache-2.0
// Helpers for replacing a file: they find its final name, name the temporary file, and copy the owner and mode.
#pragma once

#include <sys/stat.h>

#include <string>

#include "common/result.h"
#include "common/unique_fd.h"

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

// Temporary files are renamed when complete or removed. Their names are documented for users in docs/GUARANTEES.md.
// Returns a template for mkdtemp(3), which replaces the last six characters.
std::string TemporaryName(const std::string& start);

// Creates a file whose name begins with `start`, open for reading and writing. Its mode is `mode` minus the umask,
// which mkostemp(3) does not offer. Invalid, with errno set, if that fails.
UniqueFd CreateTemporaryFile(const std::string& start, mode_t mode, std::string* path);

}  // namespace weightfs::client
