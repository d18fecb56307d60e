// SPDX-License-Identifier: Apache-2.0
// Waits for a store that is being released.
#pragma once

#include <string>

#include "common/result.h"

namespace weightfs::cli {

// Returns when the lock of the store in `directory` is free, or after a minute. Waits for a holder that was killed and
// is still exiting, and for one whose mount is gone and that still writes its data (umount(8) does not wait for that).
// kBusy, with a complete message, if the store is mounted, if its daemon keeps running because its filesystem is still
// in use (another mount namespace, or open files after a lazy unmount; the message names the users), or if another
// command works on it. Changes nothing.
Result<void> WaitUntilReleased(const std::string& directory);

}  // namespace weightfs::cli
