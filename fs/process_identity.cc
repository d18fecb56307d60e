// SPDX-License-Identifier: Apache-2.0
#include "fs/process_identity.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/log.h"
#include "common/system_calls.h"

namespace weightfs {

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
