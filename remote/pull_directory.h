// SPDX-License-Identifier: Apache-2.0
// The directory in which a pull works: a temporary one beside its target, which becomes the target in one step.
#pragma once

#include <atomic>
#include <memory>

#include "common/unique_fd.h"
#include "remote/manifest.h"

namespace weightfs::remote {

// Creates files below the temporary directory `.NAME.weightfs-pull-XXXXXXXX`. Never follows a symbolic link there, and
// never leaves it. The directory is locked: one that is not locked was left by a process that was killed, and the next
// pull to the same target removes it. The destructor removes the directory unless Commit made it the target. All errors
// are full lines that name the path. MakeFile and Finish are thread-safe, everything else is externally synchronized.
class PullDirectory {
 public:
  // How everything below the directory becomes durable.
  enum class Durability : unsigned char {
    kRename,  // a weightfs mount commits everything below a directory before it renames it
    kSyncfs,
    kFsync,  // of each file: other FUSE filesystems ignore syncfs, and before Linux 5.8 it reports no error
  };

  // The target must not exist, or be an empty directory that is not a mount point. Its parent must exist. kExists,
  // kNotEmpty, kNotFound, kInvalid, and the errors of creating a directory there.
  static Result<std::unique_ptr<PullDirectory>> Create(const std::string& target);
  ~PullDirectory();
  PullDirectory(const PullDirectory&) = delete;
  PullDirectory& operator=(const PullDirectory&) = delete;

  const std::string& target() const { return target_; }
  const std::string& temporary() const { return temporary_; }
  // A descriptor of the directory, which stays the same when Commit renames it. Others may put another directory at its
  // name at any time.
  int root() const { return root_.get(); }

  // kNoSpace if the filesystem has fewer free bytes or inodes.
  Result<void> CheckSpace(uint64_t bytes, uint64_t inodes) const;

  // The paths are those of a manifest, whose directories are created before their entries. Files and directories have
  // the modes 0600 and 0700 until Finish.
  Result<void> MakeDirectory(std::string_view path);
  Result<void> MakeLink(const LinkEntry& link);
  // Creates a file and returns it, open for writing.
  Result<UniqueFd> MakeFile(std::string_view path);

  // Give a file or a directory its attributes, its mode minus the umask, and its time. A directory must have all its
  // entries.
  Result<void> Finish(const FileEntry& entry, UniqueFd file);
  Result<void> Finish(const DirectoryEntry& entry);

  // Makes everything durable, and the directory the target. After a failure the target is as it was, with one
  // exception, which the error names: the target is complete, but was not made durable.
  Result<void> Commit();

  // True if attributes were lost because the filesystem has none.
  bool lost_attributes() const { return lost_attributes_; }

 private:
  PullDirectory() = default;
  Result<void> FindTarget(const std::string& target);
  void RemoveLeftovers() const;
  Result<void> MakeTemporary();
  Result<UniqueFd> OpenParent(std::string_view path, std::string* name) const;
  Result<void> SetStatus(int file, const std::string& path, uint32_t mode, int64_t modified_ns,
                         const Attributes& attributes);
  Result<void> Rename() const;
  std::string PathOf(std::string_view path) const;

  std::string target_, temporary_;  // as the user named it, and beside it
  std::string name_, temporary_name_;
  bool replaces_ = false;  // the target is an empty directory
  bool committed_ = false;
  UniqueFd parent_, root_;  // root_ holds the lock
  mode_t mask_ = 0;
  Durability durability_ = Durability::kFsync;
  std::atomic<bool> lost_attributes_ = false;
};

}  // namespace weightfs::remote
