// SPDX-License-Identifier: Apache-2.0
#include "fs/caller.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "common/log.h"
#include "common/processes.h"

namespace weightfs {
namespace {

// After a failure to read /proc: `hidden` if the thread has ended or this user may not inspect it; otherwise an error,
// with a line in the log, because the thread may have rights that this process cannot see now.
template <typename T>
Result<T> IfHidden(pid_t thread, T hidden) {
  const int error = errno;
  if (error == ENOENT || error == ESRCH || error == EACCES || error == EPERM) return hidden;
  spdlog::error("a request of thread {} fails, because its rights cannot be read in /proc: {}", thread,
                std::strerror(error));
  return ErrorCode{error};
}

Result<bool> IsInOurUserNamespace(pid_t thread) {
  struct stat ours = {}, theirs = {};
  if (stat("/proc/self/ns/user", &ours) != 0) return IfHidden(thread, false);
  if (stat(fmt::format("/proc/{}/ns/user", thread).c_str(), &theirs) == 0) {
    return ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
  }
  // Without root this process may not follow the link of another user's thread, but it may read the user map. Only the
  // root of our namespace can give another namespace the same map.
  if (errno != EACCES) return IfHidden(thread, false);
  const auto map = ReadProcFile("self/uid_map");
  const auto their_map = map ? ReadProcFile(fmt::format("{}/uid_map", thread)) : std::nullopt;
  if (!their_map) return IfHidden(thread, false);
  return !map->empty() && map == their_map;
}

}  // namespace

Result<Caller> CredentialsOf(uint32_t uid, uint32_t gid, pid_t thread) {
  constexpr std::string_view kProcess = "Tgid:", kGroups = "Groups:", kEffective = "CapEff:";
  Caller who{{uid, gid}};
  if (thread <= 0) return who;
  const auto text = ReadProcFile(fmt::format("{}/status", thread));
  if (!text) return IfHidden(thread, who);
  std::istringstream status(*text);
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kProcess)) {
      who.process = static_cast<pid_t>(std::strtol(line.c_str() + kProcess.size(), nullptr, 10));
    } else if (line.starts_with(kGroups)) {
      std::istringstream groups(line.substr(kGroups.size()));
      for (uint32_t group = 0; groups >> group;) who.groups.push_back(group);
    } else if (line.starts_with(kEffective)) {
      who.capabilities = std::strtoull(line.c_str() + kEffective.size(), nullptr, 16);
    }
  }
  if (who.capabilities == 0) return who;
  ASSIGN_OR_RETURN(const bool ours, IsInOurUserNamespace(thread));
  if (!ours) who.capabilities = 0;
  return who;
}

Result<Caller> CallerOf(const Reply& reply) {
  const fuse_ctx& caller = reply.caller();
  return CredentialsOf(caller.uid, caller.gid, caller.pid);
}

}  // namespace weightfs
