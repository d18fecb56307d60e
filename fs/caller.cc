// SPDX-License-Identifier: Apache-2.0
#include "fs/caller.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "common/log.h"
#include "common/processes.h"

namespace weightfs {
namespace {

bool IsInOurUserNamespace(pid_t thread) {
  struct Namespace {
    struct stat status = {};
    bool known = stat("/proc/self/ns/user", &status) == 0;
  };
  static const Namespace own;  // a process with several threads cannot change it
  if (!own.known) return false;
  const struct stat& ours = own.status;
  struct stat theirs = {};
  if (stat(fmt::format("/proc/{}/ns/user", thread).c_str(), &theirs) == 0) {
    return ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
  }
  // Without root this process may not follow the link of another user's thread, but it may read the user map. Only the
  // root of our namespace can give another namespace the same map.
  if (errno != EACCES) return false;
  const auto map = ReadProcFile("self/uid_map");
  return map.has_value() && !map->empty() && map == ReadProcFile(fmt::format("{}/uid_map", thread));
}

}  // namespace

Caller CredentialsOf(uint32_t uid, uint32_t gid, pid_t thread) {
  constexpr std::string_view kProcess = "Tgid:", kGroups = "Groups:", kEffective = "CapEff:";
  Caller who{{uid, gid}};
  if (thread <= 0) return who;
  std::ifstream status(fmt::format("/proc/{}/status", thread));
  if (!status.is_open() && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
    spdlog::warn("uid {}: thread {} counts as one without capabilities and groups: its /proc cannot be opened: {}", uid,
                 thread, std::strerror(errno));
  }
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
  if (who.capabilities != 0 && !IsInOurUserNamespace(thread)) who.capabilities = 0;
  return who;
}

Caller CallerOf(const Reply& reply) {
  const fuse_ctx& caller = reply.caller();
  return CredentialsOf(caller.uid, caller.gid, caller.pid);
}

}  // namespace weightfs
