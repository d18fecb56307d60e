// SPDX-License-Identifier: Apache-2.0
// Checks of a RocksDB database's directory before RocksDB opens it: RocksDB creates, renames and deletes files before
// it rejects a directory, and it follows symbolic links. Private to meta/.
#pragma once

#include <string>

#include "common/guarded_directory.h"
#include "common/result.h"

namespace weightfs {

// Checks that `directory` holds a catalog or, with `create`, that it is missing or empty, and makes it. The directory
// and its entries must pass common/guarded_directory.h. Unless `read_only`, it removes the log files of RocksDB itself
// that earlier versions left. Full-line errors: kNotFound, kExists, kCorrupt (CURRENT is missing), kPermission,
// kNoSpace, kIo.
Result<GuardedDirectory> PrepareCatalogDirectory(const std::string& directory, bool create, bool read_only);

// Removes all permissions of other users from the directory and its files, which contain names and attributes. Logs a
// failure.
void TakePermissionsOfOthers(const GuardedDirectory& directory);

}  // namespace weightfs
