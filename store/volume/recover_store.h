// SPDX-License-Identifier: Apache-2.0
// Opens a damaged store: the log on its devices has what its directory and its superblocks have lost.
#pragma once

#include <string>
#include <vector>

#include "common/progress.h"
#include "common/result.h"
#include "store/volume/store_directory.h"

namespace weightfs {

struct RecoverOptions {
  std::vector<std::string> devices;  // in any order; empty: those of store.json
  ProgressFunction progress = nullptr;
};

struct RecoverReport {
  bool wrote_description = false;        // store.json was missing or damaged
  std::vector<std::string> superblocks;  // the devices whose superblock was rebuilt
  std::string note;                      // a line about the index, if it was rebuilt or lacks something
  bool lost = false;                     // changes or records are lost
  bool rebuilt = false;                  // the index was

  bool restored() const { return wrote_description || !superblocks.empty() || !note.empty(); }
};

// Opens a store for repair. Rebuilds what is lost of store.json, superblocks and index. With `devices`, creates the
// directory if it is missing. `report` is valid after an error, too. Errors are full lines: kBusy (the store or a
// device is in use), kNotFound (no devices are known, or they have no log), kInvalid (a device of the store is missing
// in the list), and those of OpenStoreParts.
Result<StoreParts> RecoverStore(const StoreLocation& store, const RecoverOptions& options, RecoverReport* report);

}  // namespace weightfs
