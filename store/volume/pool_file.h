// SPDX-License-Identifier: Apache-2.0
// The regular file that a pool device may be: its space, before anything is written to it.
#pragma once

#include <string>

#include "common/guarded_directory.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// Makes the pool file `name` of `store` at least `size` bytes long and, with `preallocate`, reserves the blocks of all
// of it; bytes that are there stay. The file is made when missing. Full-line errors, kNoSpace when the filesystem has
// no room; then the file is as long as it was (or gone, when this call made it). `made` says whether the file is new.
Result<void> ReservePoolFile(const GuardedDirectory& store, const std::string& name, ByteCount size, bool preallocate,
                             bool* made);

// The same for a file at any place that is there already, as long as it is.
Result<void> ReserveGivenFile(const std::string& path, ByteCount size);

}  // namespace weightfs
