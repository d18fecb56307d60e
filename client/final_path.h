// Which name a file is replaced under when it is replaced through symbolic links.
#pragma once

#include <string>

#include "client/error.h"

namespace weightfs::client {

// Follows the symbolic links at the end of `path`: the links stay, and the name behind them, which need not exist, is
// what rename(2) can replace. A link is refused (EACCES) where open(2) would refuse it: fs.protected_symlinks is set, and
// it belongs to another user in a sticky directory that all may write. ELOOP for more links than the kernel follows;
// other errors are those of open(2) on the directories. Any thread.
IoResult<std::string> FinalPath(const std::string& path);

}  // namespace weightfs::client
