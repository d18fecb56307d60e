// SPDX-License-Identifier: Apache-2.0
// An independent check of a catalog, much simpler than fsck: all rules that namespace operations maintain with each
// batch.
#pragma once

#include <string>
#include <vector>

#include "tests/support/journal.h"

namespace weightfs {

// Returns one line per broken rule; empty for a valid catalog.
std::vector<std::string> CheckCatalog(const KvContent& content);

}  // namespace weightfs
