// SPDX-License-Identifier: Apache-2.0
#include "common/processes.h"

#include <charconv>
#include <filesystem>
#include <string>

namespace weightfs {

std::vector<pid_t> AllProcesses() {
  std::vector<pid_t> processes;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t pid = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (parsed.ec == std::errc() && parsed.ptr == name.data() + name.size()) processes.push_back(pid);
  }
  return processes;
}

}  // namespace weightfs
