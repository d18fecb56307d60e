// SPDX-License-Identifier: Apache-2.0
#include "client/file_limit.h"

#include <sys/resource.h>

namespace weightfs::client {

uint64_t FileSizeLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  return limit.rlim_cur;
}

}  // namespace weightfs::client
