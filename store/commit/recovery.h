// SPDX-License-Identifier: Apache-2.0
// Rebuilds the free space from the committed extents at mount.
#pragma once

#include "common/result.h"
#include "meta/kv_store.h"
#include "store/space/space_manager.h"

namespace weightfs {

// Marks the blocks of every extent record as used, in one pass over the catalog. Returns the number of damaged records:
// undecodable, outside the devices or overlapping. They are skipped, which makes live blocks look free; then mount the
// store read-only. Returns only errors of the catalog.
Result<uint64_t> RecoverSpace(KvStore& catalog, SpaceManager& space);

}  // namespace weightfs
