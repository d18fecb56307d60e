// SPDX-License-Identifier: Apache-2.0
// Reads the whole log and its checkpoint from the devices and checks every frame, while a LogWriter may continue
// it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "common/result.h"
#include "store/wal/wal_reader.h"

namespace weightfs::wal {

struct CheckResult {
  bool stopped = false;
  std::optional<std::string> damage;  // the first one: what and where, without the next step
};

// Calls `next` with the bytes of each frame that was read; stops when it returns false. `expected`: without a valid
// root, the log is damaged. A difference counts only if it is found again while the root stays the same, because
// the writer extends the log, and frees segments that a new root does not list. Returns errors of memory.
Result<CheckResult> CheckReplica(Devices devices, const std::optional<Uuid>& store_id,
                                 const std::function<bool()>& expected, const std::function<bool(ByteCount)>& next);

}  // namespace weightfs::wal
