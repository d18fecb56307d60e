// SPDX-License-Identifier: Apache-2.0
#include "fs/caller.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "common/log.h"
#include "common/processes.h"
#include "common/system_calls.h"
#include "fs/reply.h"

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

constexpr std::chrono::seconds kFresh{1};

// /proc may belong to another PID namespace, where the same numbers are other processes.
bool ProcShowsThisNamespace() { return ReadProcLink("self") == std::to_string(getpid()); }

std::optional<ThreadOwner> ReadOwner(int32_t thread) {
  constexpr std::string_view kField = "\nTgid:";
  const std::string status = ReadProcFile(fmt::format("{}/status", thread)).value_or("");
  const size_t at = status.find(kField);
  if (at == std::string::npos) return std::nullopt;
  ThreadOwner owner{.process = std::strtoull(status.c_str() + at + kField.size(), nullptr, 10)};
  std::string name = ReadProcFile(fmt::format("{}/comm", owner.process)).value_or("");
  name.resize(std::min(name.find_last_not_of('\n') + 1, owner.name.size()));
  std::copy(name.begin(), name.end(), owner.name.begin());
  return owner;
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

ThreadOwner ThreadOwners::Of(int32_t thread) {
  static const bool readable = ProcShowsThisNamespace();
  if (thread <= 0) return {};
  const auto now = Clock::now();
  {
    MutexLock lock(mutex_);
    const auto found = known_.find(thread);
    if (found != known_.end() && (!readable || now - found->second.read < kFresh)) return found->second.owner;
  }
  const auto read = readable ? ReadOwner(thread) : std::nullopt;
  MutexLock lock(mutex_);
  if (known_.size() >= kMostKnown && !known_.contains(thread)) known_.clear();
  Known& known = known_[thread];
  if (known.owner.process == 0) known.owner.process = static_cast<uint64_t>(thread);
  if (read.has_value()) known.owner = *read;
  known.read = now;
  return known.owner;
}

bool ProcessIdentity::HasEnded() const {
  if (!descriptor_) return false;
  pollfd ended{.fd = descriptor_.get(), .events = POLLIN, .revents = 0};
  const int ready = RepeatInterrupted([&] { return poll(&ended, 1, 0); });
  if (ready >= 0) return ready > 0;
  spdlog::error("process {} counts as ended, because poll fails: {}", process_, std::strerror(errno));
  return true;
}

Result<ProcessPtr> ProcessTable::Of(pid_t process) {
  MutexLock lock(mutex_);
  if (const auto found = known_.find(process); found != known_.end()) {
    ProcessPtr known = found->second.lock();
    if (known != nullptr && known->Is(process)) return known;
  }
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  if (known_.size() >= most_) return Error{ErrorCode::kAgain, "too many processes have lease tickets"};
  UniqueFd descriptor;
  if (process != 0) {
    descriptor = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
    if (!descriptor) {
      const int error = errno;
      const bool refused = error == ENOSYS || error == EPERM;
      if (!std::exchange(logged_, true)) {
        spdlog::error("process {}: no lease, because pidfd_open fails: {}{}", process, std::strerror(error),
                      refused ? "; permit this system call to the mount" : "");
      }
      // The kernel returns ENOTTY to a program whose ioctl fails with ENOSYS.
      return ErrorCode{refused ? ESRCH : error};
    }
  }
  auto identity = std::make_shared<const ProcessIdentity>(process, std::move(descriptor));
  known_[process] = identity;
  return ProcessPtr(std::move(identity));
}

}  // namespace weightfs
