// SPDX-License-Identifier: Apache-2.0
#include "remote/pull_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "common/make_error.h"
#include "common/mounts.h"
#include "common/printable.h"
#include "common/size_text.h"
#include "common/syncfs.h"
#include "common/umask.h"
#include "remote/beneath.h"

namespace weightfs::remote {
namespace {

constexpr int kDirectoryFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr std::string_view kInfix = ".weightfs-pull-";
constexpr size_t kRandomDigits = 8;
constexpr size_t kMaximumName = 200;  // bytes of the target's name in the temporary one, which has 255 at most
// Not the bits that run a program as another user: the owner is not the one that the bits were given for.
constexpr uint32_t kModeBits = 01777;
// Directories, the ends of files, and the catalog of the filesystem.
constexpr uint64_t kSpareBytes = 1 << 20;

PullDirectory::Durability DurabilityOf(int directory) {
  using Durability = PullDirectory::Durability;
  struct statfs filesystem {};
  if (fstatfs(directory, &filesystem) != 0 || filesystem.f_type != FUSE_SUPER_MAGIC) {
    return SyncfsReportsErrors() ? Durability::kSyncfs : Durability::kFsync;
  }
  struct stat status {};
  const auto mounts = ReadMounts();
  if (fstat(directory, &status) != 0 || !mounts) return Durability::kFsync;
  const auto device = fmt::format("{}:{}", major(status.st_dev), minor(status.st_dev));
  const bool ours = std::ranges::any_of(
      *mounts, [&](const MountEntry& mount) { return mount.device == device && IsWeightfs(mount); });
  return ours ? Durability::kRename : Durability::kFsync;
}

// A link of another user must not lead a pull of root to where that user cannot write.
Result<UniqueFd> OpenDirectory(const std::string& path) {
  const auto fail = [&](const Error& error) {
    return error.what.empty() ? SystemError(path, "cannot open the directory for the pull", error.error_number())
                              : error;
  };
  const auto found = OpenPath(path);
  if (!found) return fail(found.error());
  struct stat status {};
  if (fstat(found->get(), &status) != 0) return SystemError(path, "cannot examine it");
  if (!S_ISDIR(status.st_mode)) return fail({ErrorCode::kNotDirectory, ""});
  auto opened = Reopen(found->get());
  if (!opened) return fail(opened.error());
  return opened;
}

// True if the open directory still has this name.
bool IsStill(int directory, int parent, const std::string& name) {
  struct stat opened {
  }, named{};
  return fstat(directory, &opened) == 0 && fstatat(parent, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

timespec ToTimespec(int64_t since_epoch_ns) {
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t rest = (since_epoch_ns % kSecond + kSecond) % kSecond;
  return {.tv_sec = (since_epoch_ns - rest) / kSecond, .tv_nsec = rest};
}

}  // namespace

Result<std::unique_ptr<PullDirectory>> PullDirectory::Create(const std::string& target) {
  std::unique_ptr<PullDirectory> directory(new PullDirectory());
  RETURN_IF_ERROR(directory->FindTarget(target));
  directory->RemoveLeftovers();
  RETURN_IF_ERROR(directory->MakeTemporary());
  directory->mask_ = CurrentUmask();
  directory->durability_ = DurabilityOf(directory->root_.get());
  return directory;
}

PullDirectory::~PullDirectory() {
  if (root_ && !committed_) RemoveTree(parent_.get(), temporary_name_);
}

Result<void> PullDirectory::FindTarget(const std::string& target) {
  target_ = target;
  while (target_.size() > 1 && target_.ends_with('/')) target_.pop_back();
  const size_t slash = target_.rfind('/');
  name_ = slash == std::string::npos ? target_ : target_.substr(slash + 1);
  if (name_.empty() || name_ == "." || name_ == "..") {
    return Error{ErrorCode::kInvalid,
                 Printable(target) + ": name the directory that the pull creates, e.g. /mnt/tensors/model"};
  }
  const std::string parent = slash == std::string::npos ? "." : slash == 0 ? "/" : target_.substr(0, slash);
  ASSIGN_OR_RETURN(parent_, OpenDirectory(parent));
  struct stat status {
  }, above{};
  if (fstatat(parent_.get(), name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return {};
    return SystemError(target_, "cannot examine it");
  }
  const auto refuse = [&](ErrorCode code, std::string_view why) -> Result<void> {
    return MakeError(code, "{}: {}; name a directory that does not exist", Printable(target_), why);
  };
  if (!S_ISDIR(status.st_mode)) return refuse(ErrorCode::kExists, "it exists and is no directory");
  if (fstat(parent_.get(), &above) != 0) return SystemError(parent, "cannot examine it");
  if (status.st_dev != above.st_dev) return refuse(ErrorCode::kBusy, "it is a mount point");
  const UniqueFd existing(openat(parent_.get(), name_.c_str(), kDirectoryFlags));
  if (!existing) return SystemError(target_, "cannot open it");
  ASSIGN_OR_RETURN(const auto names, ListNames(existing.get(), target_));
  if (!names.empty()) return refuse(ErrorCode::kNotEmpty, "it exists and is not empty");
  replaces_ = true;
  return {};
}

// A pull that was killed left its directory without a lock. What cannot be removed is not in the way.
void PullDirectory::RemoveLeftovers() const {
  const std::string prefix = "." + name_.substr(0, kMaximumName) + std::string(kInfix);
  const auto names = ListNames(parent_.get(), target_);
  if (!names) return;
  for (const std::string& name : *names) {
    if (!name.starts_with(prefix) || name.size() != prefix.size() + kRandomDigits) continue;
    const UniqueFd directory(openat(parent_.get(), name.c_str(), kDirectoryFlags));
    if (!directory || flock(directory.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (IsStill(directory.get(), parent_.get(), name)) RemoveTree(parent_.get(), name);
  }
}

Result<void> PullDirectory::MakeTemporary() {
  const size_t slash = target_.rfind('/');
  const std::string above = slash == std::string::npos ? "" : target_.substr(0, slash + 1);
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    temporary_name_ = "." + name_.substr(0, kMaximumName) + std::string(kInfix) + RandomId().substr(0, kRandomDigits);
    temporary_ = above + temporary_name_;
    if (mkdirat(parent_.get(), temporary_name_.c_str(), 0700) != 0) {
      if (errno == EEXIST) continue;
      return SystemError(temporary_, "cannot create the temporary directory of the pull");
    }
    UniqueFd made(openat(parent_.get(), temporary_name_.c_str(), kDirectoryFlags));
    // Another pull may have taken it for a leftover before it was locked.
    if (!made && errno == ENOENT) continue;
    if (!made) return SystemError(temporary_, "cannot open the temporary directory of the pull");
    if (flock(made.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) continue;
    if (!IsStill(made.get(), parent_.get(), temporary_name_)) continue;
    root_ = std::move(made);
    return {};
  }
  return Error{ErrorCode::kBusy, Printable(target_) + ": other pulls to this directory are in the way"};
}

Result<void> PullDirectory::CheckSpace(uint64_t bytes, uint64_t inodes) const {
  struct statvfs space {};
  if (fstatvfs(root_.get(), &space) != 0) return SystemError(temporary_, "cannot examine the free space");
  const uint64_t free = uint64_t{space.f_bavail} * space.f_frsize;
  if (free < bytes + std::min(kSpareBytes, bytes / 8)) {
    return MakeError(ErrorCode::kNoSpace, "{}: the pull needs {}, and {} are free: delete something first",
                     Printable(target_), FormatSize(ByteCount{bytes}), FormatSize(ByteCount{free}));
  }
  if (space.f_files != 0 && space.f_favail < inodes) {
    return MakeError(ErrorCode::kNoSpace, "{}: the pull needs {} files and directories, and {} are free",
                     Printable(target_), inodes, space.f_favail);
  }
  return {};
}

Result<UniqueFd> PullDirectory::OpenParent(std::string_view path, std::string* name) const {
  auto parent = remote::OpenParent(root_.get(), path, name);
  if (!parent) return SystemError(PathOf(path), "cannot open its directory", parent.error().error_number());
  return parent;
}

Result<void> PullDirectory::MakeDirectory(std::string_view path) {
  if (path.empty()) return {};
  std::string name;
  ASSIGN_OR_RETURN(const UniqueFd parent, OpenParent(path, &name));
  if (mkdirat(parent.get(), name.c_str(), 0700) != 0) return SystemError(PathOf(path), "cannot create the directory");
  return {};
}

Result<void> PullDirectory::MakeLink(const LinkEntry& link) {
  std::string name;
  ASSIGN_OR_RETURN(const UniqueFd parent, OpenParent(link.path, &name));
  if (symlinkat(link.target.c_str(), parent.get(), name.c_str()) != 0) {
    return SystemError(PathOf(link.path), "cannot create the symbolic link");
  }
  return {};
}

Result<UniqueFd> PullDirectory::MakeFile(std::string_view path) {
  std::string name;
  ASSIGN_OR_RETURN(const UniqueFd parent, OpenParent(path, &name));
  UniqueFd file(openat(parent.get(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return SystemError(PathOf(path), "cannot create the file");
  return file;
}

Result<void> PullDirectory::Finish(const FileEntry& entry, UniqueFd file) {
  const std::string path = PathOf(entry.path);
  RETURN_IF_ERROR(SetStatus(file.get(), path, entry.mode, entry.modified_ns, entry.attributes));
  if (file.Close() != 0) return SystemError(path, "cannot write it");
  return {};
}

Result<void> PullDirectory::Finish(const DirectoryEntry& entry) {
  std::string name;
  if (entry.path.empty()) {
    return SetStatus(root_.get(), temporary_, entry.mode, entry.modified_ns, entry.attributes);
  }
  ASSIGN_OR_RETURN(const UniqueFd parent, OpenParent(entry.path, &name));
  const UniqueFd directory(openat(parent.get(), name.c_str(), kDirectoryFlags));
  if (!directory) return SystemError(PathOf(entry.path), "cannot open the directory");
  return SetStatus(directory.get(), PathOf(entry.path), entry.mode, entry.modified_ns, entry.attributes);
}

Result<void> PullDirectory::SetStatus(int file, const std::string& path, uint32_t mode, int64_t modified_ns,
                                      const Attributes& attributes) {
  for (const auto& [name, value] : attributes) {
    if (fsetxattr(file, name.c_str(), value.data(), value.size(), 0) == 0) continue;
    if (errno != EOPNOTSUPP) return SystemError(path, "cannot set the attribute " + Printable(name));
    lost_attributes_ = true;
    break;
  }
  if (fchmod(file, mode & kModeBits & ~mask_) != 0) return SystemError(path, "cannot set its mode");
  const timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW}, ToTimespec(modified_ns)};
  if (futimens(file, times) != 0) return SystemError(path, "cannot set its time");
  if (durability_ == Durability::kFsync && fsync(file) != 0) return SystemError(path, "cannot write it");
  return {};
}

Result<void> PullDirectory::Commit() {
  if (durability_ == Durability::kSyncfs && syncfs(root_.get()) != 0) {
    return SystemError(temporary_, "cannot write it");
  }
  RETURN_IF_ERROR(Rename());
  committed_ = true;
  if (fsync(parent_.get()) != 0)
    return SystemError(target_, "it is complete, but a crash may undo its creation: fsync");
  return {};
}

Result<void> PullDirectory::Rename() const {
  const char* from = temporary_name_.c_str();
  const char* to = name_.c_str();
  if (!replaces_) {
    if (renameat2(parent_.get(), from, parent_.get(), to, RENAME_NOREPLACE) == 0) return {};
    // Some filesystems lack RENAME_NOREPLACE. Without it, rename replaces an empty directory, but nothing else.
    if (errno != EINVAL && errno != ENOSYS) return SystemError(target_, "cannot rename the complete pull to it");
  }
  if (renameat(parent_.get(), from, parent_.get(), to) == 0) return {};
  return SystemError(target_, "cannot rename the complete pull to it");
}

std::string PullDirectory::PathOf(std::string_view path) const { return fmt::format("{}/{}", temporary_, path); }

}  // namespace weightfs::remote
