// SPDX-License-Identifier: Apache-2.0
// Durable names: a file's name survives a loss of power only when its directory was synced.
#pragma once

#include <string>

#include "common/error.h"

namespace weightfs {

// Makes the names in a directory durable. Errors are full lines.
Result<void> SyncDirectory(const std::string& directory);

// The same for the directory that contains `path`.
Result<void> SyncParentDirectory(const std::string& path);

}  // namespace weightfs
