// SPDX-License-Identifier: Apache-2.0
// A directory, or a single file, that is pushed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"
#include "remote/manifest.h"

namespace weightfs::remote {

// What changes when an inode changes.
struct InodeState {
  std::string path;
  uint64_t device = 0, inode = 0, size = 0;
  int64_t modified_ns = 0, changed_ns = 0;
  bool operator==(const InodeState&) const = default;
};

struct LocalTree {
  // Without version, push, times and slices.
  Manifest manifest;
  // Where the paths of the manifest begin: the directory itself, or the directory of the single file.
  std::string root;
  std::vector<InodeState> states;  // of all directories and files, ordered by path

  std::string PathOf(const FileEntry& file) const { return root + "/" + file.path; }
  // The latest change of any file or directory, since the epoch.
  int64_t newest_ns() const;
  // 32 hexadecimal digits that identify this tree in this state, also after its filesystem was mounted again, when its
  // device has another number.
  std::string Fingerprint() const;
};

// Lists a directory with everything below it, or a single file. Symbolic links are not followed, except `path` itself.
// Errors, each one full line with the path: kInvalid for names that cannot be in a bucket (CheckPath), for other kinds
// of files and for a file system mounted inside; those of the system calls.
Result<LocalTree> ScanTree(const std::string& path);

}  // namespace weightfs::remote
