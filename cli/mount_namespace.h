// SPDX-License-Identifier: Apache-2.0
// The option --namespace of mount and umount; mount(8) calls it -N.
#pragma once

#include <string>

#include "common/result.h"

namespace weightfs::cli {

// Moves this process, which must still be single-threaded, into a mount namespace, given by a process number or a file
// such as /proc/PID/ns/mnt. An empty name changes nothing. From then on all paths are in that namespace. Errors are
// complete messages.
Result<void> EnterMountNamespace(const std::string& name);

}  // namespace weightfs::cli
