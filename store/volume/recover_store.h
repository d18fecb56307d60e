// SPDX-License-Identifier: Apache-2.0
// Rebuilds the catalog of a store, its description and its superblocks from the replica on the devices.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/progress.h"
#include "common/result.h"
#include "store/volume/catalog_replica.h"

namespace weightfs {

struct RecoverOptions {
  std::vector<std::string> devices;  // in any order; empty: those of store.json
  ProgressFunction progress = nullptr;
};

struct RecoverReport {
  std::optional<ReplicaRestore> restored;  // nullopt: the catalog lacks nothing
  std::string kept;                        // where the old catalog is now; empty if there was none
  bool wrote_description = false;          // store.json was missing or damaged
  std::vector<std::string> superblocks;    // the devices whose superblock was rebuilt
};

// Rebuilds what is lost of catalog, store.json and superblocks. A new catalog is built beside the old one, and both are
// then swapped. With `devices`, creates the directory if it is missing. Errors are full lines: kBusy (the store or a
// device is in use), kExists (nothing is lost), kNotFound (no devices are known, or they hold no replica), kInvalid (a
// device of the store is missing in the list), and those of devices and files.
Result<RecoverReport> RecoverStore(const std::string& directory, const RecoverOptions& options);

}  // namespace weightfs
