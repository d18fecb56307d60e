// SPDX-License-Identifier: Apache-2.0
// Failing fdatasync(2): the test executable's definition comes before the C library's, for RocksDB too.
#pragma once

#include <cstdint>
#include <string>

namespace weightfs {

// While one lives, fdatasync of files whose names end in `suffix` fails with `error`. One at a time.
class ScopedSyncFault {
 public:
  ScopedSyncFault(const std::string& suffix, int error);
  ~ScopedSyncFault();
  ScopedSyncFault(const ScopedSyncFault&) = delete;
  ScopedSyncFault& operator=(const ScopedSyncFault&) = delete;
};

// Calls of fdatasync so far, failed ones included.
uint64_t SyncCalls();

}  // namespace weightfs
