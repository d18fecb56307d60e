// SPDX-License-Identifier: Apache-2.0
// Files in a directory that other users may write to: any name there may be a symbolic link or a FIFO that somebody
// else made. Opening it would read, change or wait for something that the directory does not hold.
#pragma once

#include <fcntl.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs {

// A directory whose entries are trusted only where they are regular files, or directories, of this process's user or of
// the directory's owner; symbolic links are never followed. All errors are full lines: kNotFound, kAccess (permission
// denied), kReadOnly, kNoSpace, kIo, and kPermission for an entry that is not trusted.
//
// A file or directory that root makes in the directory of another user belongs to that user from the start, unless that
// user may not write there: the user could not open it otherwise. Nothing that was there before is given away: the
// owner of the directory may have moved it there.
//
// Immutable and thread-safe. Owns a descriptor of the directory.
class GuardedDirectory {
 public:
  // Follows the symbolic links of `path` itself, for the caller chose it. kNotDirectory for anything else.
  static Result<GuardedDirectory> Open(const std::string& path);
  // The directory `name` of this one.
  Result<GuardedDirectory> OpenDirectory(const std::string& name) const;
  // Makes the directory `name`, of mode 0700 less the umask.
  Result<void> MakeDirectory(const std::string& name) const;

  const std::string& path() const { return path_; }
  uid_t owner() const { return owner_; }
  gid_t group() const { return group_; }
  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }

  // Opens the file `name`. `flags` are those of open(2) without O_TRUNC; with O_CREAT a missing file is made with mode
  // 0600 whatever the umask. A file opened for writing must have no second name (hard link).
  Result<UniqueFd> OpenFile(const std::string& name, int flags) const;
  // Returns at most `limit` bytes of the file.
  Result<std::string> ReadFile(const std::string& name, size_t limit) const;

  // Checks that `name` is a trusted regular file, without opening it; with `or_block_device` also any block device,
  // which root alone can make.
  Result<void> CheckFile(const std::string& name, bool or_block_device = false) const;
  // The names of all entries, each of which must be a trusted regular file. `lost+found` is left out.
  Result<std::vector<std::string>> ListFiles() const;

  // Takes every permission of group and others from the directory, and from the file `name`; missing is no error. A
  // file that has a second name (hard link) stays as it is. A failure is logged.
  void Restrict() const;
  void RestrictFile(const std::string& name) const;

 private:
  GuardedDirectory(std::string path, UniqueFd descriptor, uid_t owner, gid_t group)
      : path_(std::move(path)), descriptor_(std::move(descriptor)), owner_(owner), group_(group) {}
  Result<void> CheckOwner(const std::string& path, const struct stat& status) const;
  Result<void> CheckStatus(const std::string& name, const struct stat& status) const;

  std::string path_;
  UniqueFd descriptor_;  // O_PATH
  uid_t owner_;
  gid_t group_;
};

}  // namespace weightfs
