// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/utsname.h>

#include <cstdlib>

namespace weightfs {

// Whether syncfs(2) reports failed writes: since Linux 5.8.
inline bool SyncfsReportsErrors() {
  utsname kernel{};
  if (uname(&kernel) != 0) return false;
  char* rest = nullptr;
  const auto major = std::strtoul(static_cast<const char*>(kernel.release), &rest, 10);
  const auto minor = *rest == '.' ? std::strtoul(rest + 1, nullptr, 10) : 0;
  return major > 5 || (major == 5 && minor >= 8);
}

}  // namespace weightfs
