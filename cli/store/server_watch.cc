// SPDX-License-Identifier: Apache-2.0
#include "cli/store/server_watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "common/processes.h"

namespace weightfs::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{20};
constexpr milliseconds kLookInterval{1000};  // interval between scans of all processes
constexpr milliseconds kLong{2000};          // without a terminal, a wait of this length is reported once

bool HasTerminal() { return isatty(STDERR_FILENO) != 0; }

}  // namespace

ServerWatch::ServerWatch(const MountEntry& mount)
    : mount_(mount),
      lock_(StoreLock::OpenToWatch(mount_.source).value_or(UniqueFd())),
      holder_(Look()),
      process_(holder_.process > 0 ? static_cast<int>(syscall(SYS_pidfd_open, holder_.process, 0)) : -1) {}

StoreHolder ServerWatch::Look() const { return lock_ ? ReadStoreHolder(lock_) : StoreHolder(); }

bool ServerWatch::IsOther(const StoreHolder& holder) const {
  if (holder.state == StoreHolder::State::kServing && !holder.filesystem.Has(mount_)) return true;
  return holder.noted > 0 && holder_.noted > 0 && holder.noted != holder_.noted;
}

bool ServerWatch::IsGone() const {
  // A command that works on the store serves no mount.
  return lock_ && (!holder_.held || holder_.state == StoreHolder::State::kWorking || IsOther(holder_) ||
                   (holder_.process > 0 && IsEnding(holder_.process)));
}

Result<void> ServerWatch::EndMount(milliseconds timeout, const std::function<bool()>& is_mounted) {
  const bool serving = holder_.held && holder_.state == StoreHolder::State::kServing;
  if (serving && holder_.process == 0) {
    return Error{ErrorCode::kPermission,
                 "its daemon runs in another PID namespace, where this command cannot signal "
                 "it; unmount it there, or free the directory here with -l"};
  }
  const auto start = Clock::now();
  bool answers = holder_.IsEnding();
  // Looks again now that process_ refers to the process, because the number might have been reused before.
  if (serving && process_ && Look().process == holder_.process) {
    answers = syscall(SYS_pidfd_send_signal, process_.get(), SIGTERM, nullptr, 0) == 0;
  }
  while (answers && is_mounted()) {
    const StoreHolder now = Look();
    if (!now.held || IsOther(now)) break;
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
    const bool closing = now.state == StoreHolder::State::kClosing || now.noted == 0;
    answers = waited < timeout || closing;
    if (closing) Report(waited, timeout, std::nullopt);
    Sleep();
  }
  if (!answers) {
    Print(stderr,
          fmt::format("weightfs: {}: its daemon does not respond; changes made through shared mappings may be lost\n",
                      mount_.source));
  }
  return {};
}

bool ServerWatch::IsMainMount(const std::string& directory) const {
  return holder_.directory.empty() || holder_.directory == directory;
}

void ServerWatch::Sleep() const {
  pollfd ended{process_.get(), POLLIN, 0};
  poll(&ended, process_ ? 1 : 0, static_cast<int>(kPoll.count()));
}

// Reads what the server left in the lock file: nothing after success, its process number if it did not finish.
Result<ServerWatch::End> ServerWatch::Verdict() const {
  const StoreHolder left = Look();
  if (IsOther(left)) return End{.closed = true};
  if (!left.error.empty()) {
    return Error{ErrorCode::kIo, fmt::format("unmounted, but not everything reached the device: {}; run 'weightfs "
                                             "verify'",
                                             left.error)};
  }
  if (left.noted == 0) return End{.closed = true};
  return Error{ErrorCode::kIo,
               "unmounted, but its process ended without closing the store; unsynced data may be lost; "
               "the next mount recovers the rest"};
}

void ServerWatch::Report(milliseconds waited, milliseconds timeout, const std::optional<Keepers>& keepers) {
  const bool kept = keepers.has_value() && !keepers->empty();
  if (HasTerminal() ? waited < kPoll : waited < kLong) return;
  const std::string line =
      kept ? fmt::format("waiting at most {:g} s: {}", static_cast<double>(timeout.count()) / 1000,
                         DescribeKeepers(*keepers))
           : fmt::format("waiting until {} has written everything", DescribeProcess(holder_.process));
  if (line == reported_) return;
  reported_ = line;
  Print(stderr, fmt::format("weightfs: {}: {}\n", mount_.source, line));
}

Result<ServerWatch::End> ServerWatch::Wait(milliseconds timeout, bool leave_kept, bool forced) {
  if (lock_.get() < 0) {
    return Error{ErrorCode::kAccess,
                 "unmounted, but the store is not accessible (deleted, or owned by another user?): "
                 "it is unknown whether all data is on the device; run 'weightfs verify'"};
  }
  const auto start = Clock::now();
  auto next_look = start + 5 * kPoll;  // an unused daemon has noticed the unmount by then
  std::optional<Keepers> keepers;
  // The lock decides: the server releases it last. Another server can have it only after ours has closed the store.
  for (StoreHolder holder = Look(); holder.held && !IsOther(holder); Sleep(), holder = Look()) {
    const auto now = Clock::now();
    const auto waited = std::chrono::duration_cast<milliseconds>(now - start);
    const bool serving = holder.state == StoreHolder::State::kServing && !forced;
    if (serving && now >= next_look) {
      keepers = FindKeepers(mount_.filesystem());
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
