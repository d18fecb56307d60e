// SPDX-License-Identifier: Apache-2.0
// How much memory this process may use.
#pragma once

#include <optional>
#include <string>

#include "common/units.h"

namespace weightfs {

struct MemoryLimit {
  ByteCount size;
  std::string source;  // "this machine", or the file of the cgroup that limits it
};

// The memory of the machine, or the smallest limit of the cgroups (v1 or v2) that this process is in. `root` replaces
// "/" in tests. Nothing where /proc/meminfo cannot be read.
std::optional<MemoryLimit> FindMemoryLimit(const std::string& root = "");

}  // namespace weightfs
