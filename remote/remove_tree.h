// SPDX-License-Identifier: Apache-2.0
// Removes directories that may hold anything.
#pragma once

#include <string>
#include <vector>

#include "common/result.h"

namespace weightfs::remote {

// Returns the names in an open directory, without "." and "..". `path` is for errors.
Result<std::vector<std::string>> ListNames(int directory, const std::string& path);

// Removes the directory `name` in `parent` with everything below it, as far as possible. Never follows a symbolic link,
// and does not enter other filesystems.
void RemoveTree(int parent, const std::string& name);

}  // namespace weightfs::remote
