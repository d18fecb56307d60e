// SPDX-License-Identifier: Apache-2.0
#include "remote/beneath.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <memory>
#include <set>

#include "common/make_error.h"
#include "common/printable.h"

namespace weightfs::remote {
namespace {

// The text of such a link may name something else: /proc/PID/root of a process in another mount namespace, or a file
// descriptor whose file was deleted.
bool IsProcLink(int link) {
  struct statfs filesystem {};
  return fstatfs(link, &filesystem) == 0 && filesystem.f_type == PROC_SUPER_MAGIC;
}

void RemoveBelow(int parent, const std::string& name, dev_t device) {
  if (unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return;
  struct stat status{};
  if (fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || status.st_dev != device) return;
  // A directory that has its final mode may not be readable or writable.
  fchmodat(parent, name.c_str(), 0700, AT_SYMLINK_NOFOLLOW);
  const UniqueFd directory(openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory || fstat(directory.get(), &status) != 0 || status.st_dev != device) return;
  if (const auto names = ListNames(directory.get(), name)) {
    for (const std::string& below : *names) RemoveBelow(directory.get(), below, device);
  }
  unlinkat(parent, name.c_str(), AT_REMOVEDIR);
}

}  // namespace

// Reads each link itself. The kernel would follow the link that is there at the second look, and all after it.
Result<UniqueFd> OpenPath(const std::string& path) {
  constexpr int kDirectory = O_PATH | O_DIRECTORY | O_CLOEXEC;
  constexpr int kMostLinks = 40;  // same as the kernel's limit
  if (path.empty()) return ErrorCode::kNotFound;
  UniqueFd at(open(path.starts_with('/') ? "/" : ".", kDirectory));
  struct stat status {};
  std::set<uid_t> owners;  // of links
  int links = 0;
  for (std::string rest = path; at && !rest.empty();) {
    const size_t slash = rest.find('/');
    const std::string name = rest.substr(0, slash);
    rest.erase(0, slash == std::string::npos ? slash : slash + 1);
    if (name.empty()) continue;
    UniqueFd next(openat(at.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!next || fstat(next.get(), &status) != 0) return ErrorCode{errno};
    if (!S_ISLNK(status.st_mode)) {
      at = std::move(next);
      continue;
    }
    if (++links > kMostLinks) return ErrorCode{ELOOP};
    owners.insert(status.st_uid);
    if (IsProcLink(next.get())) {  // the kernel follows it; no user can replace it
      at = UniqueFd(openat(at.get(), name.c_str(), O_PATH | O_CLOEXEC));
      if (!at) return ErrorCode{errno};
      continue;
    }
    std::array<char, PATH_MAX> target;
    const ssize_t size = readlinkat(next.get(), "", target.data(), target.size());
    if (size < 0) return ErrorCode{errno};
    if (static_cast<size_t>(size) == target.size()) return ErrorCode::kNameTooLong;
    rest = std::string(target.data(), static_cast<size_t>(size)) + "/" + rest;
    if (rest.starts_with('/')) at = UniqueFd(open("/", kDirectory));
  }
  if (!at || fstat(at.get(), &status) != 0) return ErrorCode{errno};
  for (const uid_t owner : owners) {
    if (owner == 0 || owner == geteuid() || owner == status.st_uid) continue;
    return MakeError(ErrorCode::kAccess,
                     "{}: a symbolic link on this path belongs to user {}, and what it leads to does not; write the "
                     "path without the link",
                     Printable(path), owner);
  }
  return at;
}

// Component by component, because openat follows links in all but the last one.
Result<UniqueFd> OpenParent(int root, std::string_view path, std::string* name) {
  UniqueFd directory(fcntl(root, F_DUPFD_CLOEXEC, 0));
  if (!directory) return ErrorCode{errno};
  for (size_t slash = path.find('/'); slash != std::string_view::npos; slash = path.find('/')) {
    const std::string component(path.substr(0, slash));
    UniqueFd below(openat(directory.get(), component.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!below) return ErrorCode{errno};
    directory = std::move(below);
    path.remove_prefix(slash + 1);
  }
  *name = path;
  return directory;
}

Result<UniqueFd> OpenBeneath(int root, std::string_view path) {
  std::string name;
  ASSIGN_OR_RETURN(const UniqueFd parent, OpenParent(root, path, &name));
  UniqueFd found(openat(parent.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!found) return ErrorCode{errno};
  return found;
}

Result<UniqueFd> Reopen(int descriptor, bool direct) {
  const std::string path = fmt::format("/proc/self/fd/{}", descriptor);
  constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;
  UniqueFd again(open(path.c_str(), kFlags | (direct ? O_DIRECT : 0)));
  if (!again && direct && errno == EINVAL) again = UniqueFd(open(path.c_str(), kFlags));
  if (!again) return ErrorCode{errno};
  return again;
}

Result<std::vector<std::string>> ListNames(int directory, const std::string& path) {
  auto reopened = Reopen(directory);
  if (!reopened) return SystemError(path, "cannot open the directory", reopened.error().error_number());
  UniqueFd copy = std::move(*reopened);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(fdopendir(copy.get()), closedir);
  if (stream == nullptr) return SystemError(path, "cannot read the directory");
  copy.Release();
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(stream.get());
    if (entry == nullptr && errno != 0) return SystemError(path, "cannot read the directory");
    if (entry == nullptr) return names;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
}

void RemoveTree(int parent, const std::string& name) {
  struct stat status{};
  if (fstat(parent, &status) == 0) RemoveBelow(parent, name, status.st_dev);
}

}  // namespace weightfs::remote
