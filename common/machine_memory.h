// SPDX-License-Identifier: Apache-2.0
// The memory limit of this process.
#pragma once

#include <optional>
#include <string>

#include "common/units.h"

namespace weightfs {

struct MemoryLimit {
  ByteCount size;
  std::string source;  // "this machine", or the cgroup file with the limit
};

// Returns the memory of the machine, or the smallest limit of this process's cgroups (v1 or v2). `root` replaces "/" in
// tests. Returns nullopt when /proc/meminfo cannot be read.
std::optional<MemoryLimit> FindMemoryLimit(const std::string& root = "");

}  // namespace weightfs
