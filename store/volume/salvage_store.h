// SPDX-License-Identifier: Apache-2.0
// Rebuilds the catalog of a store from what can be read of it. For damage that the replica cannot undo.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

namespace weightfs {

struct SalvagedStore {
  uint64_t records = 0;
  uint64_t inodes = 0;             // whose records are lost, but not their names or extents
  uint64_t gaps = 0;               // ranges of keys in which records may be missing
  uint64_t uncertain = 0;          // records that are perhaps older versions, or deleted
  std::vector<std::string> files;  // damaged tables
  std::string kept;                // where the damaged catalog is now

  bool complete() const { return gaps == 0; }
};

// Writes every readable record of the catalog to a new one beside it, and then swaps both. The store must not be in use
// (kBusy). The new catalog may be inconsistent: check it with CheckStore and `repair` next. Errors are full lines;
// after an error the old catalog is in place.
Result<SalvagedStore> SalvageStore(const std::string& directory);

// One line: what was salvaged, and what is lost.
std::string DescribeSalvaged(const SalvagedStore& salvaged);

}  // namespace weightfs
