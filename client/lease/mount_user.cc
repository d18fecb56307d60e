// SPDX-License-Identifier: Apache-2.0
#include "client/lease/mount_user.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>

#include "common/parse_number.h"

namespace weightfs::client {
namespace {

// The kernel shows this id for users that have no id in the process's user namespace. A real user may also have it.
constexpr uid_t kOverflowUser = 65534;

// True if every user id maps to itself here, so that no id stands for another user.
bool SeesAllUsers() {
  std::ifstream file("/proc/self/uid_map");
  uint64_t inside = 1, outside = 1, count = 0;
  file >> inside >> outside >> count;
  return file && inside == 0 && outside == 0 && count == std::numeric_limits<uint32_t>::max();
}

std::optional<uid_t> ValueOf(std::string_view options, std::string_view name) {
  while (!options.empty()) {
    const std::string_view option = options.substr(0, options.find(','));
    options.remove_prefix(std::min(options.size(), option.size() + 1));
    if (!option.starts_with(name)) continue;
    if (const auto value = ParseNumber<uid_t>(option.substr(name.size()))) return value;
  }
  return std::nullopt;
}

}  // namespace

std::optional<uid_t> FindMountUser(std::istream& mounts, dev_t device) {
  const std::string wanted = fmt::format("{}:{}", major(device), minor(device));
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string id, parent, number, field, type, source, options;
    fields >> id >> parent >> number;
    if (number != wanted) continue;
    // Optional fields precede the hyphen. No field contains a space.
    while (fields >> field && field != "-") {
    }
    if (!(fields >> type >> source >> options)) continue;
    if (const auto user = ValueOf(options, "user_id=")) return user;
  }
  return std::nullopt;
}

Result<uid_t> MountUser(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) {
    return Error{ErrorCode{errno}, fmt::format("no lease: cannot look at the file: {}", std::strerror(errno))};
  }
  std::ifstream mounts("/proc/self/mountinfo");
  const auto user = FindMountUser(mounts, status.st_dev);
  if (!user) {
    return Error{ErrorCode::kAccess,
                 "no lease: /proc/self/mountinfo does not have the file's mount, so nothing says which user "
                 "serves it"};
  }
  if (*user == kOverflowUser && !SeesAllUsers()) {
    return Error{ErrorCode::kAccess,
                 fmt::format("no lease: the user who serves the mount may have no id in this user namespace "
                             "(the kernel shows {})",
                             *user)};
  }
  return *user;
}

}  // namespace weightfs::client
