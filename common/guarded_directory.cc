// SPDX-License-Identifier: Apache-2.0
#include "common/guarded_directory.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "common/file_owner.h"
#include "common/log.h"
#include "common/shell_quote.h"
#include "common/system_calls.h"

namespace weightfs {
namespace {

constexpr mode_t kOthers = S_IRWXG | S_IRWXO;

// Removes the permissions of group and others from a file or directory opened with O_PATH. Logs a failure.
void TakeFromOthers(const std::string& path, int descriptor, mode_t mode) {
  if ((mode & kOthers) == 0) return;
  const std::string self = fmt::format("/proc/self/fd/{}", descriptor);  // fchmod(2) rejects O_PATH descriptors
  if (chmod(self.c_str(), mode & 07777 & ~kOthers) == 0) return;
  spdlog::warn("{}: other users may open it: its permissions cannot be changed: {}", path, std::strerror(errno));
}

std::string_view TypeName(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR: return "a directory";
    case S_IFIFO: return "a FIFO";
    case S_IFSOCK: return "a socket";
    case S_IFREG: return "a regular file";
    default: return "a device";
  }
}

Error WrongType(const std::string& path, mode_t mode, std::string_view wanted) {
  if (S_ISLNK(mode)) {
    return {ErrorCode::kPermission,
            fmt::format("{}: is a symbolic link, which weightfs does not follow in a store; put {} itself there", path,
                        wanted)};
  }
  return {ErrorCode::kPermission,
          fmt::format("{}: is {}, not {}; find out who put it there, and remove it", path, TypeName(mode), wanted)};
}

}  // namespace

Result<GuardedDirectory> GuardedDirectory::Open(const std::string& path) {
  UniqueFd descriptor(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct stat status = {};
  if (!descriptor || fstat(descriptor.get(), &status) != 0) return SystemError(path, "cannot be opened");
  return GuardedDirectory(path, std::move(descriptor), status.st_uid, status.st_gid);
}

Result<GuardedDirectory> GuardedDirectory::OpenDirectory(const std::string& name) const {
  const std::string path = PathOf(name);
  UniqueFd descriptor(openat(descriptor_.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat status = {};
  if (!descriptor || fstat(descriptor.get(), &status) != 0) return SystemError(path, "cannot be opened");
  if (!S_ISDIR(status.st_mode)) return WrongType(path, status.st_mode, "a directory");
  RETURN_IF_ERROR(CheckOwner(path, status));
  return GuardedDirectory(path, std::move(descriptor), status.st_uid, status.st_gid);
}

Result<void> GuardedDirectory::MakeDirectory(const std::string& name) const {
  const auto make = [&] { return mkdirat(descriptor_.get(), name.c_str(), S_IRWXU) == 0; };
  if (CreateAsOwner(owner_, group_, make)) return {};
  return SystemError(PathOf(name), "cannot be made");
}

Result<void> GuardedDirectory::CheckOwner(const std::string& path, const struct stat& status) const {
  if (status.st_uid == geteuid() || status.st_uid == owner_) return {};
  if (status.st_uid == 0) {
    return Error{ErrorCode::kPermission,
                 fmt::format("{}: belongs to root, who may have made or mounted this store; root can give it to the "
                             "owner of {} with: chown -hR --reference={} {}",
                             path, path_, ShellQuote(path_), ShellQuote(path))};
  }
  return Error{ErrorCode::kPermission,
               fmt::format("{}: belongs to user {}, neither to this user nor to the owner of {}; find out who put it "
                           "there, and change its owner or remove it",
                           path, status.st_uid, path_)};
}

Result<void> GuardedDirectory::CheckStatus(const std::string& name, const struct stat& status) const {
  if (!S_ISREG(status.st_mode)) return WrongType(PathOf(name), status.st_mode, "a regular file");
  return CheckOwner(PathOf(name), status);
}

Result<void> GuardedDirectory::CheckFile(const std::string& name, bool or_block_device) const {
  struct stat status = {};
  if (fstatat(descriptor_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return SystemError(PathOf(name), "cannot be looked at");
  }
  if (or_block_device && S_ISBLK(status.st_mode)) return {};
  return CheckStatus(name, status);
}

Result<UniqueFd> GuardedDirectory::OpenFile(const std::string& name, int flags) const {
  const int safe = flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
  const std::string path = PathOf(name);
  while (true) {
    // Check before the open, which may have effects on a device, and which fails without a reason on a socket.
    const auto checked = CheckFile(name);
    const bool missing = !checked.has_value() && checked.error().code == ErrorCode::kNotFound;
    if (!checked.has_value() && (!missing || (flags & O_CREAT) == 0)) return checked.error();
    const int way = missing ? safe | O_EXCL : safe & ~O_CREAT;
    UniqueFd file;
    const auto open_file = [&] {
      file = UniqueFd(openat(descriptor_.get(), name.c_str(), way, S_IRUSR | S_IWUSR));
      return static_cast<bool>(file);
    };
    missing ? CreateAsOwner(owner_, group_, open_file) : open_file();
    if (!file && errno == (missing ? EEXIST : ENOENT)) continue;  // created or removed since the check
    if (!file && errno == ELOOP) return WrongType(path, S_IFLNK, "a regular file");
    struct stat status = {};
    if (!file || fstat(file.get(), &status) != 0) return SystemError(path, "cannot be opened");
    if (missing) {
      // The umask may have removed permissions of the owner.
      if (fchmod(file.get(), S_IRUSR | S_IWUSR) != 0) return SystemError(path, "its permissions cannot be changed");
      return file;
    }
    RETURN_IF_ERROR(CheckStatus(name, status));
    if ((flags & O_ACCMODE) != O_RDONLY && status.st_nlink > 1) {
      return Error{ErrorCode::kPermission,
                   fmt::format("{}: is one of {} names of a file, which writing would change under all of them; find "
                               "out who made the others, and remove this one",
                               path, status.st_nlink)};
    }
    return file;
  }
}

Result<std::string> GuardedDirectory::ReadFile(const std::string& name, size_t limit) const {
  ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(name, O_RDONLY));
  std::string text(limit, '\0');
  const ssize_t got = ReadFully(file.get(), std::as_writable_bytes(std::span(text)), 0);
  if (got < 0) return SystemError(PathOf(name), "cannot be read");
  text.resize(static_cast<size_t>(got));
  return text;
}

Result<std::vector<std::string>> GuardedDirectory::ListFiles() const {
  UniqueFd again(openat(descriptor_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!again) return SystemError(path_, "cannot be listed");
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(fdopendir(again.get()), closedir);
  if (stream == nullptr) return SystemError(path_, "cannot be listed");
  again.Release();  // the stream closes it
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(stream.get());
    if (entry == nullptr && errno != 0) return SystemError(path_, "cannot be listed");
    if (entry == nullptr) return names;
    const std::string name = entry->d_name;
    if (name == "." || name == ".." || name == "lost+found") continue;
    const auto checked = CheckFile(name);
    if (!checked.has_value() && checked.error().code == ErrorCode::kNotFound) continue;  // removed meanwhile
    RETURN_IF_ERROR(checked);
    names.push_back(name);
  }
}

void GuardedDirectory::Restrict() const {
  struct stat status = {};
  if (fstat(descriptor_.get(), &status) == 0) TakeFromOthers(path_, descriptor_.get(), status.st_mode);
}

void GuardedDirectory::RestrictFile(const std::string& name) const {
  // O_PATH does not open the file. Closing an opened file would release this process's fcntl(2) locks on it, and
  // RocksDB holds such a lock on its LOCK file.
  const UniqueFd file(openat(descriptor_.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!file && errno == ENOENT) return;
  struct stat status = {};
  if (!file || fstat(file.get(), &status) != 0) {
    spdlog::warn("{}: cannot be looked at: {}", PathOf(name), std::strerror(errno));
    return;
  }
  if (!CheckStatus(name, status).has_value()) return;
  // The owner of the directory may have made a second name for a file outside the store.
  if (status.st_nlink == 1) TakeFromOthers(PathOf(name), file.get(), status.st_mode);
}

}  // namespace weightfs
