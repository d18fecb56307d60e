// SPDX-License-Identifier: Apache-2.0
// A regular file as a pool device: reserves its space before anything is written to it.
#pragma once

#include <string>

#include "common/guarded_directory.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// Makes the pool file `name` of `store` at least `size` bytes long and, with `preallocate`, reserves all of its blocks.
// Existing bytes are kept. Creates the file if it is missing; `made` tells whether it did. Errors have full messages;
// kNoSpace when the filesystem is full. On an error the file has its old length, or is removed if this call created it.
Result<void> ReservePoolFile(const GuardedDirectory& store, const std::string& name, ByteCount size, bool preallocate,
                             bool* made);

// Same for an existing file at any path, with its current size.
Result<void> ReserveGivenFile(const std::string& path, ByteCount size);

}  // namespace weightfs
