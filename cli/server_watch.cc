// SPDX-License-Identifier: Apache-2.0
#include "cli/server_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

namespace weightfs::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{20};
constexpr milliseconds kLookInterval{1000};  // between looks through all processes
constexpr milliseconds kLong{2000};          // without a terminal, a wait of this length is reported once

bool HasTerminal() { return isatty(STDERR_FILENO) != 0; }

}  // namespace

ServerWatch::ServerWatch(const MountEntry& mount)
    : store_(mount.source),
      device_(mount.device),
      lock_(StoreLock::OpenToWatch(store_).value_or(Descriptor())),
      holder_(ReadStoreHolder(store_)),
      process_(holder_.process > 0 ? static_cast<int>(syscall(SYS_pidfd_open, holder_.process, 0)) : -1) {}

bool ServerWatch::IsGone() const {
  if (lock_.get() < 0 || flock(lock_.get(), LOCK_SH | LOCK_NB) != 0) return false;
  flock(lock_.get(), LOCK_UN);
  return true;
}

// The number in the lock file may be that of another process here: of another pid namespace, or a later one.
bool ServerWatch::HasLockOpen(pid_t process) const {
  struct stat lock = {};
  if (lock_.get() < 0 || fstat(lock_.get(), &lock) != 0) return false;
  std::error_code error;
  const std::string folder = fmt::format("/proc/{}/fd", process);
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    struct stat file = {};
    if (stat(entry->path().c_str(), &file) != 0) continue;
    if (file.st_dev == lock.st_dev && file.st_ino == lock.st_ino) return true;
  }
  return false;
}

bool ServerWatch::AskToEnd() const {
  return process_.get() >= 0 && HasLockOpen(holder_.process) &&
         syscall(SYS_pidfd_send_signal, process_.get(), SIGTERM, nullptr, 0) == 0;
}

bool ServerWatch::IsMainMount(const std::string& directory) const {
  return holder_.directory.empty() || holder_.directory == directory;
}

// The lock tells: it is the last thing that the server gives back. Its process ends the sleep sooner.
bool ServerWatch::IsReleased() {
  if (flock(lock_.get(), LOCK_SH | LOCK_NB) == 0) return true;
  // Somebody else has mounted the store already: then ours is closed.
  const StoreHolder now = ReadStoreHolder(store_);
  if (now.process > 0 && holder_.process > 0 && now.process != holder_.process) return true;
  pollfd ended{process_.get(), POLLIN, 0};
  poll(&ended, process_.get() >= 0 ? 1 : 0, static_cast<int>(kPoll.count()));
  return false;
}

// What the server left in the lock file: nothing when all went well, its number when it never got there.
Result<ServerWatch::End> ServerWatch::Verdict() const {
  const StoreHolder left = ReadStoreHolder(store_);
  if (left.process > 0 && left.process != holder_.process) return End{.closed = true};
  if (!left.error.empty()) {
    return Error{ErrorCode::kIo, fmt::format("unmounted, but not everything reached the device: {}; run 'weightfs "
                                             "fsck'",
                                             left.error)};
  }
  if (left.process == 0) return End{.closed = true};
  return Error{ErrorCode::kIo,
               "unmounted, but its process ended without closing the store; what was not synced may be "
               "lost, the next mount recovers the rest"};
}

void ServerWatch::Report(milliseconds waited, milliseconds timeout, const std::optional<Keepers>& keepers) {
  const bool kept = keepers.has_value() && !keepers->empty();
  if (HasTerminal() ? waited < kPoll : waited < kLong) return;
  const std::string line = kept ? fmt::format("waiting {:g} s at most: {}", static_cast<double>(timeout.count()) / 1000,
                                              DescribeKeepers(*keepers))
                                : fmt::format("waiting until process {} has written everything", holder_.process);
  if (line == reported_) return;
  reported_ = line;
  fmt::print(stderr, "weightfs: {}: {}\n", store_, line);
}

Result<ServerWatch::End> ServerWatch::Wait(milliseconds timeout, bool leave_kept, bool forced) {
  if (lock_.get() < 0) {
    return Error{ErrorCode::kAccess,
                 "unmounted, but the store cannot be looked at (is it gone, or not yours?): "
                 "whether all is on the device is not known; run 'weightfs fsck'"};
  }
  const auto start = Clock::now();
  auto next_look = start + 5 * kPoll;  // a daemon that nobody keeps has noticed by then
  std::optional<Keepers> keepers;
  while (!IsReleased()) {
    const auto now = Clock::now();
    const auto waited = std::chrono::duration_cast<milliseconds>(now - start);
    const StoreHolder holder = ReadStoreHolder(store_);
    const bool serving = holder.state == StoreHolder::State::kServing && !forced;
    if (serving && now >= next_look) {
      keepers = FindKeepers(device_);
      next_look = std::min(now + kLookInterval, std::max(now + kPoll, start + timeout));
      const bool settled = !keepers->here.empty() || (leave_kept && !keepers->empty());
      if (settled || waited >= timeout) return End{.keepers = *std::move(keepers), .holder = holder};
    }
    if (!serving) keepers.reset();
    Report(waited, timeout, keepers);
  }
  return Verdict();
}

}  // namespace weightfs::cli
