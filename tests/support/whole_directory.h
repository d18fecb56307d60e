// SPDX-License-Identifier: Apache-2.0
// The complete listing of a directory, as a program sees it.
#pragma once

#include <vector>

#include "store/names/namespace.h"

namespace weightfs {

// Returns every current entry, "." and ".." first.
inline Result<std::vector<DirectoryEntry>> ReadDirectory(Namespace& names, InodeId directory) {
  std::vector<DirectoryEntry> entries = {{".", directory, S_IFDIR}};
  ASSIGN_OR_RETURN(const Attributes above, names.Lookup(directory, ".."));
  entries.push_back({"..", above.ino, S_IFDIR});
  RETURN_IF_ERROR(names.ListEntries(directory, {}, [&](const DirectoryEntry& entry) {
    entries.push_back(entry);
    return true;
  }));
  return entries;
}

}  // namespace weightfs
