// Waiting for a store that is just being let go.
#pragma once

#include <sys/types.h>

#include <string>

namespace weightfs::cli {

// Returns when the store in `directory` is locked by nobody, or when waiting would not help. Only two cases are worth
// waiting for, a minute at most: a holder that has been killed and is still ending, and one whose mount is gone (somebody
// called umount(8), which does not wait) and that is writing the last of its data. Changes nothing, reports nothing.
void WaitUntilReleased(const std::string& directory);

// Whether the process was killed or is a zombie: it will never do anything again but end.
bool IsEnding(pid_t process);

}  // namespace weightfs::cli
