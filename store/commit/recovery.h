// SPDX-License-Identifier: Apache-2.0
// Rebuilds the free space from the committed extents at mount.
#pragma once

#include "common/result.h"
#include "meta/kv_store.h"
#include "store/space/space_manager.h"

namespace weightfs {

struct SpaceRecovery {
  uint64_t extents = 0;
  uint64_t damaged = 0;  // undecodable, outside the devices or overlapping; any of these means read-only
};

// Marks the blocks of every extent record as used, in one pass over the catalog. A damaged record is skipped, which
// makes live blocks look free; then mount the store read-only. Returns only errors of the catalog.
Result<SpaceRecovery> RecoverSpace(KvStore& catalog, SpaceManager& space);

}  // namespace weightfs
