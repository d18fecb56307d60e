// SPDX-License-Identifier: Apache-2.0
// Checks of a SaveMany before it changes anything.
#pragma once

#include <span>
#include <string>

#include "client/handle.h"
#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::client {

// EINVAL for a name that is none of a file, or that is there twice.
Result<void> CheckNames(const std::string& directory, std::span<const NamedMemory> files);

// EINVAL when the memory of all files together, in whole blocks, is more than 2^63 - 1 bytes: views of one element may
// show any size.
Result<void> CheckTotal(const std::string& directory, std::span<const NamedMemory> files);

// The directory, open. Whether new files may be made in it: EROFS, EACCES; a lease asks nobody else for that. EFBIG for
// files beyond the process's limit.
Result<UniqueFd> OpenToSave(const std::string& directory, std::span<const NamedMemory> files);

// EINVAL for more than one commit takes.
Result<void> CheckOneCommit(const std::string& directory, std::span<const NamedMemory> files);

// Checks that rename(2) may put a file in the place of each: EISDIR, EPERM (in sticky directories, and for files that
// are immutable or append-only), EBUSY (mounted).
Result<void> CheckReplaceable(const UniqueFd& folder, const std::string& directory, std::span<const NamedMemory> files);

// "PATH: ACTION: the errno's words".
Error FailedAt(const std::string& path, const char* action, int error_number);

}  // namespace weightfs::client
