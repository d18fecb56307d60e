// SPDX-License-Identifier: Apache-2.0
// The memory limit of this process, and the memory that is left.
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

// Memory that the kernel could use for pages without taking it from programs; 0 when it is unknown.
ByteCount AvailableMemory();

// False if the machine has an eighth of its memory left, and this process no smaller limit: then tasks that wait for
// memory wait for that of their own cgroups.
bool MayBeShortOfMemory();

}  // namespace weightfs
