// SPDX-License-Identifier: Apache-2.0
// Waiting for a store that is just being released.
#pragma once

#include <string>

#include "common/result.h"

namespace weightfs::cli {

// Returns when the lock of the store in `directory` is free, or after a minute. Waits for a holder that has been killed
// and is still ending, and for one whose mount is gone (umount(8) does not wait) and that is writing the last of its
// data. kBusy, with a full line, when the store is mounted; when its daemon goes on because others keep its filesystem
// (another mount namespace, or open files of a lazy unmount; they are named); and when another command works on it.
// Changes nothing.
Result<void> WaitUntilReleased(const std::string& directory);

}  // namespace weightfs::cli
