// SPDX-License-Identifier: Apache-2.0
// A directory, or a single file, that is pushed.
#pragma once

#include "common/unique_fd.h"
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
  int source = -1;                 // as given to ScanTree; it must stay open
  bool is_file = false;            // the source is a single file

  std::string PathOf(const FileEntry& file) const { return root + "/" + file.path; }
  // The latest change of any file or directory, since the epoch.
  int64_t newest_ns() const;
  // 32 hexadecimal digits that identify this tree in this state, also after its filesystem was mounted again, when its
  // device has another number.
  std::string Fingerprint() const;

  // Opens for reading the file that was listed, with O_DIRECT if `direct` is true and its filesystem has it. Another
  // user may have put anything in its place: kStale unless it is the same inode in the same state.
  Result<UniqueFd> Open(const FileEntry& file, bool direct) const;
};

// The error for a file or directory that is not as it was listed.
Error ChangedDuringPush(const std::string& path);

// Opens a directory or a regular file for ScanTree. From then on its path does not matter. Errors, each one full line:
// kInvalid for other kinds of files, kAccess for a link of another user (OpenPath), those of open(2).
Result<UniqueFd> OpenSource(const std::string& path);

// Lists an open directory with everything below it, or an open file. Symbolic links are not followed. Errors, each one
// full line with the path: kInvalid for names that cannot be in a bucket (CheckPath), for other kinds of files and for
// a file system mounted inside; those of the system calls.
Result<LocalTree> ScanTree(int source);

}  // namespace weightfs::remote
