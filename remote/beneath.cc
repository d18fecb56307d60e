// SPDX-License-Identifier: Apache-2.0
#include "remote/beneath.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <set>
#include <utility>

#include "common/printable.h"

namespace weightfs::remote {
namespace {

// The text of such a link may name something else: /proc/PID/root of a process in another mount namespace, or a file
// descriptor whose file was deleted.
bool IsProcLink(int link) {
  struct statfs filesystem {};
  return fstatfs(link, &filesystem) == 0 && filesystem.f_type == PROC_SUPER_MAGIC;
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
    return Error{ErrorCode::kAccess,
                 fmt::format("{}: a symbolic link on this path belongs to user {}, and what it leads to does not; "
                             "write the path without the link",
                             Printable(path), owner)};
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

}  // namespace weightfs::remote
