// SPDX-License-Identifier: Apache-2.0
// Free space, rebuilt at mount from the committed extents.
#pragma once

#include "common/result.h"
#include "meta/kv_store.h"
#include "store/space/space_manager.h"

namespace weightfs {

struct SpaceRecovery {
  uint64_t extents = 0;
  uint64_t damaged = 0;  // undecodable, outside the devices, or overlapping: a skipped record would make live blocks
                         // look free, so that any of these means read-only
};

// Marks the blocks of every extent record used, in one pass over the catalog. Errors are the catalog's alone.
Result<SpaceRecovery> RecoverSpace(KvStore& catalog, SpaceManager& space);

}  // namespace weightfs
