// SPDX-License-Identifier: Apache-2.0
// The option --namespace of mount and umount, which is -N of mount(8).
#pragma once

#include <string>

#include "common/result.h"

namespace weightfs::cli {

// Moves this process, which has one thread yet, into a mount namespace: of the process with this number, or of a file
// like /proc/PID/ns/mnt. Empty: stays. Paths mean those of that namespace from then on. Full-line errors.
Result<void> EnterMountNamespace(const std::string& name);

}  // namespace weightfs::cli
