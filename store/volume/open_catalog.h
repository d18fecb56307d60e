// SPDX-License-Identifier: Apache-2.0
// Opens the catalog of a store: its index, brought up to the end of the log on the devices.
#pragma once

#include <cstdint>
#include <span>

#include "common/result.h"
#include "store/volume/store_directory.h"

namespace weightfs {

// Opens the catalog of a store whose devices are open, and sets `catalog`, `log`, `note` and `lost` of `parts`. An
// index that is missing, damaged, older than the log, or of another store is no error: it is caught up or rebuilt, and
// with read_only only in memory. kCorrupt if the log is damaged where the index lacks its changes; with `repair` or
// read_only, what can be read is used.
//
// Without a log, only a store directory counts, or an index whose version the superblocks name.
//
// A store of an older version has no such log. Its catalog must not be damaged or older than its replica on the
// devices, of which `repair` rebuilds it. A mount for writing then makes the log.
Result<void> OpenCatalog(const StoreLocation& store, const OpenOptions& options, StoreParts* parts);

// Before a check changes a catalog that was opened with `repair`, whose Sync makes its changes durable. The index gets
// a version that the log does not have, and the superblocks name it. The next mount for writing with this index writes
// the log anew; until then, the log on the devices has everything as it was before the repair.
Result<void> BeginRepair(StoreParts* parts);

enum class ErasedRoots : uint8_t { kAll, kWithLists };
// Clears roots that an older program may have made invalid: all, if it does not know replicas, and otherwise those with
// lists.
Result<void> EraseRoots(std::span<BlockDevice* const> devices, ErasedRoots erased);

}  // namespace weightfs
