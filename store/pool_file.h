// The regular file that a pool device may be: its space, before anything is written to it.
#pragma once

#include <string>

#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// Makes `path` at least `size` bytes long and, with `preallocate`, reserves the blocks of all of it; bytes that are
// there stay. The file is made when missing. Full-line errors, kNoSpace when the filesystem has no room; then the file
// is as long as it was (or gone, when this call made it). `made` says whether the file is new.
Result<void> ReservePoolFile(const std::string& path, ByteCount size, bool preallocate, bool* made);

}  // namespace weightfs
