// SPDX-License-Identifier: Apache-2.0
// The process's limit of the sizes of files (RLIMIT_FSIZE, ulimit -f). The kernel kills a process that writes behind it
// (SIGXFSZ); this library asks first, and reports EFBIG.
#pragma once

#include <cstdint>

namespace weightfs::client {

// Bytes; UINT64_MAX without a limit. It may change at any time.
uint64_t FileSizeLimit();

}  // namespace weightfs::client
