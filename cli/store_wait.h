// SPDX-License-Identifier: Apache-2.0
// Waiting for a store that is just being released.
#pragma once

#include <sys/types.h>

#include <string>

#include "common/result.h"

namespace weightfs::cli {

// Returns when the store in `directory` is locked by nobody, or when waiting would not help. Two cases are worth
// waiting for, a minute at most: a holder that has been killed and is still ending, and one whose mount is gone
// (somebody called umount(8), which does not wait) and that is writing the last of its data. kBusy, with a full line,
// when the store is mounted, or when its daemon goes on because others keep its filesystem: another mount namespace,
// or open files of a lazy unmount; they are named. Changes nothing.
Result<void> WaitUntilReleased(const std::string& directory);

// Whether the process was killed or is a zombie: it will never do anything again but end.
bool IsEnding(pid_t process);

}  // namespace weightfs::cli
