// SPDX-License-Identifier: Apache-2.0
// The path of an inode, for messages.
#pragma once

#include <functional>
#include <string>

#include "common/units.h"
#include "meta/kv_store.h"

namespace weightfs {

// Returns a path of the inode from the root, without a leading slash; empty when it has none, or when the catalog
// cannot be read. Scans all names, because files do not record their directories; `stop` ends the scan early.
std::string FindPath(KvStore& catalog, InodeId ino, const std::function<bool()>& stop);

}  // namespace weightfs
