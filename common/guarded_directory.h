// SPDX-License-Identifier: Apache-2.0
// Access to files in a directory that other users can write to. Any name there may be a symbolic link or a FIFO made by
// somebody else. Opening it could read, change or wait for something outside the directory.
#pragma once

#include <fcntl.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs {

// A directory whose entries are trusted only if they are regular files or directories of this process's user or of the
// directory's owner. Symbolic links are never followed. All errors are full lines: kNotFound, kAccess (permission
// denied), kReadOnly, kNoSpace, kIo, and kPermission for an entry that is not trusted.
//
// When root creates a file or directory in the directory of another user, it belongs to that user from the start,
// because the user could not open it otherwise; if that user may not write there, it belongs to root. Existing files
// never change their owner, because the owner of the directory may have moved them there.
//
// Immutable and thread-safe. Owns a descriptor of the directory.
class GuardedDirectory {
 public:
  // Opens a directory. Follows symbolic links in `path`, because the caller chose it. Returns kNotDirectory for other
  // files.
  static Result<GuardedDirectory> Open(const std::string& path);
  // Opens the directory `name` in this one.
  Result<GuardedDirectory> OpenDirectory(const std::string& name) const;
  // Creates the directory `name` with mode 0700 minus the umask.
  Result<void> MakeDirectory(const std::string& name) const;

  const std::string& path() const { return path_; }
  uid_t owner() const { return owner_; }
  gid_t group() const { return group_; }
  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }

  // Opens the file `name`. `flags` are those of open(2) without O_TRUNC. O_CREAT creates a missing file with mode 0600
  // regardless of the umask. A file opened for writing must not have a second name (hard link).
  Result<UniqueFd> OpenFile(const std::string& name, int flags) const;
  // Returns at most `limit` bytes of the file.
  Result<std::string> ReadFile(const std::string& name, size_t limit) const;

  // Checks that `name` is a trusted regular file, without opening it. `or_block_device` also allows any block device,
  // because only root can create one.
  Result<void> CheckFile(const std::string& name, bool or_block_device = false) const;
  // Returns the names of all entries except `lost+found`. Each must be a trusted regular file.
  Result<std::vector<std::string>> ListFiles() const;

  // Removes all permissions of group and others from the directory, or from the file `name` if it exists. A file with a
  // second name (hard link) is left alone. A failure is logged.
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
