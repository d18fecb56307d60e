// SPDX-License-Identifier: Apache-2.0
// Makes fdatasync(2) fail. The test executable's definition takes precedence over the C library's, also for RocksDB.
#pragma once

#include <cstdint>
#include <string>

namespace weightfs {

// While an object exists, fdatasync of files whose names end in `suffix` fails with `error`. Only one object may exist
// at a time.
class ScopedSyncFault {
 public:
  ScopedSyncFault(const std::string& suffix, int error);
  ~ScopedSyncFault();
  ScopedSyncFault(const ScopedSyncFault&) = delete;
  ScopedSyncFault& operator=(const ScopedSyncFault&) = delete;
};

// Number of fdatasync calls so far, including failed ones.
uint64_t SyncCalls();

}  // namespace weightfs
