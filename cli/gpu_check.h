// SPDX-License-Identifier: Apache-2.0
// What `weightfs doctor` says about GPUs.
#pragma once

#include <vector>

#include "cli/machine_checks.h"

namespace weightfs::cli {

// Whether handles can use GPUs here, and which way their transfers take. Without a GPU nothing is missing.
std::vector<Check> CheckGpus();

}  // namespace weightfs::cli
