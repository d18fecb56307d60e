// SPDX-License-Identifier: Apache-2.0
#include "common/machine_memory.h"

#include <fstream>
#include <limits>

#include "common/mounts.h"
#include "common/parse_number.h"

namespace weightfs {
namespace {

// The value of a line of /proc/meminfo.
std::optional<ByteCount> MemoryInfo(const std::string& root, std::string_view wanted) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  uint64_t kilobytes = 0;
  while (file >> name >> kilobytes) {
    if (name == wanted) return ByteCount{kilobytes * kKiB};
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// Reads a file with a number of bytes. "max" and a missing file mean no limit.
void TakeLimit(const std::string& path, MemoryLimit* limit) {
  std::string text;
  std::ifstream(path) >> text;
  const auto bytes = ParseNumber<uint64_t>(text);
  if (bytes && *bytes < limit->size.value) *limit = {ByteCount{*bytes}, path};
}

// A limit applies to all cgroups below its own. A container may see its cgroup as the root of the hierarchy.
void TakeLimits(const std::string& hierarchy, std::string cgroup, const char* name, MemoryLimit* limit) {
  for (;;) {
    TakeLimit(hierarchy + cgroup + (cgroup.ends_with('/') ? "" : "/") + name, limit);
    const size_t slash = cgroup.rfind('/');
    if (cgroup.size() <= 1 || slash == std::string::npos) return;
    cgroup.resize(slash == 0 ? 1 : slash);
  }
}

}  // namespace

ByteCount AvailableMemory() { return MemoryInfo("", "MemAvailable:").value_or(ByteCount{0}); }

bool MayBeShortOfMemory() {
  const auto limit = FindMemoryLimit();
  const ByteCount machine = MemoryInfo("", "MemTotal:").value_or(ByteCount{0});
  return !limit || limit->size < machine || AvailableMemory() < ByteCount{machine.value / 8};
}

std::optional<MemoryLimit> FindMemoryLimit(const std::string& root) {
  const auto machine = MemoryInfo(root, "MemTotal:");
  if (!machine.has_value()) return std::nullopt;
  MemoryLimit limit{*machine, "this machine"};
  std::ifstream file(root + "/proc/self/cgroup");
  // Lines have the form "0::/path" (v2) or "4:memory:/path" (v1).
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) {
      TakeLimits(root + "/sys/fs/cgroup", path, "memory.max", &limit);
      TakeLimits(root + "/sys/fs/cgroup/unified", path, "memory.max", &limit);
    } else if (HasOption(controllers, "memory")) {
      TakeLimits(root + "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", &limit);
    }
  }
  if (!root.empty() && limit.source.starts_with(root)) limit.source.erase(0, root.size());
  return limit;
}

}  // namespace weightfs
