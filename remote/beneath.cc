// SPDX-License-Identifier: Apache-2.0
#include "remote/beneath.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <utility>

namespace weightfs::remote {

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
