// SPDX-License-Identifier: Apache-2.0
// The GPU checks of `weightfs doctor`.
#pragma once

#include <vector>

#include "cli/machine_checks.h"

namespace weightfs::cli {

// Whether handles can use GPUs here, and how their transfers are carried out. A machine without a GPU lacks nothing.
std::vector<Check> CheckGpus();

}  // namespace weightfs::cli
