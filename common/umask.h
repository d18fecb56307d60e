// SPDX-License-Identifier: Apache-2.0
// The umask of this thread, without changing it as umask(2) does.
#pragma once

#include <sys/types.h>

#include <fstream>
#include <string>

namespace weightfs {

inline constexpr mode_t kFileMode = 0666;  // of files that a program creates, before the umask

// Returns 0077 if /proc does not say it, so that files are then their owner's alone.
inline mode_t CurrentUmask() {
  std::ifstream status("/proc/thread-self/status");
  for (std::string word; status >> word;) {
    mode_t mask = 0;
    if (word == "Umask:") return status >> std::oct >> mask ? mask : 0077;
  }
  return 0077;
}

}  // namespace weightfs
