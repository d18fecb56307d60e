// SPDX-License-Identifier: Apache-2.0
#include "fs/handles.h"

#include <fcntl.h>

#include <utility>

namespace weightfs {

bool FileHandle::mappable() const { return (flags & O_ACCMODE) == O_RDWR; }

bool FileHandle::writable() const { return (flags & O_ACCMODE) != O_RDONLY; }

Result<DirectoryHandle::Entries> DirectoryHandle::Snapshot(Namespace& names, bool refresh) {
  if (!refresh) {
    MutexLock lock(mutex_);
    if (entries_ != nullptr) return entries_;
  }
  ASSIGN_OR_RETURN(std::vector<DirectoryEntry> read, names.ReadDirectory(inode->id));
  auto entries = std::make_shared<const std::vector<DirectoryEntry>>(std::move(read));
  MutexLock lock(mutex_);
  entries_ = entries;
  return entries;
}

}  // namespace weightfs
