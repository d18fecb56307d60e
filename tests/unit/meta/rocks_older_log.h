// SPDX-License-Identifier: Apache-2.0
// A catalog as versions before the log on the devices left it.
#pragma once

#include <filesystem>

#include "meta/kv_store.h"

namespace weightfs {

// Creates a catalog, or opens one, with the changes in RocksDB's own log, as after a kill.
void WriteOlderLog(const std::filesystem::path& directory, const std::vector<KvBatch>& batches);

}  // namespace weightfs
