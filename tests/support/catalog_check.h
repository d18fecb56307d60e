// SPDX-License-Identifier: Apache-2.0
// A second opinion on a catalog, much simpler than fsck: every rule that namespace operations keep at each batch.
#pragma once

#include <string>
#include <vector>

#include "tests/support/journal.h"

namespace weightfs {

// One line for each rule broken; empty for a catalog in order.
std::vector<std::string> CheckCatalog(const KvContent& content);

}  // namespace weightfs
