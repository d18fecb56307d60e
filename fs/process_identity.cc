// SPDX-License-Identifier: Apache-2.0
#include "fs/process_identity.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/log.h"

namespace weightfs {

bool ProcessIdentity::HasEnded() const {
  if (!descriptor_) return false;
  pollfd ended{.fd = descriptor_.get(), .events = POLLIN, .revents = 0};
  return poll(&ended, 1, 0) != 0;  // a failed poll does not show that it lives
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
      if (!std::exchange(logged_, true)) {
        spdlog::error("process {}: no lease, because pidfd_open fails: {}; permit this system call to the mount",
                      process, std::strerror(errno));
      }
      return ErrorCode{ENOSYS};
    }
  }
  auto identity = std::make_shared<const ProcessIdentity>(process, std::move(descriptor));
  known_[process] = identity;
  return ProcessPtr(std::move(identity));
}

}  // namespace weightfs
