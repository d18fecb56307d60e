// SPDX-License-Identifier: Apache-2.0
// Checks that SaveMany makes before it changes anything.
#pragma once

#include <span>
#include <string>

#include "client/handle.h"
#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::client {

// EINVAL for a name that is not a valid file name, or that occurs twice.
Result<void> CheckNames(const std::string& directory, std::span<const NamedMemory> files);

// EINVAL if the memory of all files together, rounded up to whole blocks, exceeds 2^63 - 1 bytes. This can happen
// because a view of one element may have any size.
Result<void> CheckTotal(const std::string& directory, std::span<const NamedMemory> files);

// Opens the directory and checks that new files may be created in it: EROFS, EACCES. A commit by a lease does not check
// this. EFBIG for files beyond the process's limit.
Result<UniqueFd> OpenToSave(const std::string& directory, std::span<const NamedMemory> files);

// EINVAL for more files than one commit accepts.
Result<void> CheckOneCommit(const std::string& directory, std::span<const NamedMemory> files);

// Checks that rename(2) may replace each file: EISDIR, EPERM (sticky directories, and immutable or append-only files),
// EBUSY (mount points).
Result<void> CheckReplaceable(const UniqueFd& folder, const std::string& directory, std::span<const NamedMemory> files);

// Returns the error "PATH: ACTION: STRERROR".
Error FailedAt(const std::string& path, const char* action, int error_number);

}  // namespace weightfs::client
