// SPDX-License-Identifier: Apache-2.0
#include "cli/mount_namespace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/processes.h"
#include "common/unique_fd.h"

namespace weightfs::cli {

Result<void> EnterMountNamespace(const std::string& name) {
  if (name.empty()) return {};
  const bool is_process = std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
  const std::string path = is_process ? fmt::format("/proc/{}/ns/mnt", name) : name;
  // Opens the current /proc, which is needed to read the mount table: a container's /proc may not show this process.
  static_cast<void>(ProcDirectory());
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() >= 0 && setns(file.get(), CLONE_NEWNS) == 0) return {};
  return Error{ErrorCode::kAccess, fmt::format("{}: this mount namespace cannot be entered: {}; give the number of one "
                                               "of its processes, as root",
                                               name, std::strerror(errno))};
}

}  // namespace weightfs::cli
