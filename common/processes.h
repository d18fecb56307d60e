// SPDX-License-Identifier: Apache-2.0
// The processes of this machine, as /proc lists them.
#pragma once

#include <sys/types.h>

#include <vector>

namespace weightfs {

std::vector<pid_t> AllProcesses();

}  // namespace weightfs
