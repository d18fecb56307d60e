// SPDX-License-Identifier: Apache-2.0
#include "fs/handles.h"

#include <fcntl.h>

namespace weightfs {

bool FileHandle::mappable() const { return (flags & O_ACCMODE) == O_RDWR; }

bool MayWrite(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

}  // namespace weightfs
