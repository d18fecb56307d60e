// SPDX-License-Identifier: Apache-2.0
// The process's file size limit (RLIMIT_FSIZE, ulimit -f). The kernel sends SIGXFSZ to a process that writes beyond the
// limit, which kills it by default. This library checks the limit first and reports EFBIG.
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace weightfs::client {

// The limit in bytes, or UINT64_MAX if there is none. It may change at any time.
inline uint64_t FileSizeLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  return limit.rlim_cur;
}

}  // namespace weightfs::client
