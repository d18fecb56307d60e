// SPDX-License-Identifier: Apache-2.0
// weightfs umount: unmounts, and returns when everything is on the device.
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "cli/commands.h"
#include "cli/keepers.h"
#include "cli/mount_table.h"
#include "cli/store/remount.h"
#include "common/processes.h"
#include "common/shell_quote.h"
#include "fs/mountpoint.h"

namespace weightfs::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// An additional exit code: unmounted here, but the daemon keeps running for other users.
constexpr int kStillServed = 3;
constexpr double kDefaultTimeout = 10, kLongestTimeout = 86400;

// A mount that nobody holds open may still be in use for the duration of another process's system call.
constexpr int kTries = 20;
constexpr milliseconds kBetweenTries{100};

constexpr milliseconds kPoll{20};
constexpr milliseconds kLookInterval{1000};  // interval between scans of all processes
constexpr milliseconds kLong{2000};          // without a terminal, a wait of this length is reported once

// A read-only mount without a directory for its index has no other locks than those of the devices.
void WaitForDevices(const MountEntry& mount, milliseconds timeout) {
  const auto store = FindStore(mount.source);
  if (!store || !store->described) return;
  const auto deadline = Clock::now() + timeout;
  for (const auto& device : store->described->devices) {
    const UniqueFd file(open(device.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    while (file && flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK && Clock::now() < deadline) {
      std::this_thread::sleep_for(kPoll);
    }
  }
}

// Watches the process that serves a mount until it has closed the store. Externally synchronized.
class ServerWatch {
 public:
  // The result of the wait.
  struct End {
    bool closed = false;  // the store was closed cleanly
    Keepers keepers;      // otherwise: what keeps the daemon running
    StoreHolder holder;
  };

  // Must be created before the unmount. Afterwards the process may be gone, and its number may be reused.
  explicit ServerWatch(const MountEntry& mount)
      : mount_(mount),
        lock_(OpenLockOf(mount_).value_or(UniqueFd())),
        holder_(Look()),
        process_(holder_.process > 0 ? static_cast<int>(syscall(SYS_pidfd_open, holder_.process, 0)) : -1) {}

  // Waits until the store is closed, which takes as long as writing its data. While others keep the filesystem in use,
  // waits no longer than `timeout`; with `leave_kept` it does not wait for them at all; with `forced` they do not
  // matter, because the daemon ends anyway. Reports the wait on standard error: on a terminal at once, elsewhere if it
  // takes long. Returns an error if the store was not closed cleanly.
  Result<End> Wait(milliseconds timeout, bool leave_kept, bool forced) {
    if (!lock_ && HasOption(mount_.options, "ro")) {
      WaitForDevices(mount_, timeout);
      return End{.closed = true};
    }
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

  // Sends SIGTERM to the daemon, which then collects the changes made through shared mappings and ends its mount. Waits
  // while `is_mounted` is true, until the store is closed: at most `timeout` until the daemon notes that it is closing,
  // and without a limit after that. Reports on standard error if the daemon does not answer. Returns an error if the
  // daemon serves the mount and is not reachable from this PID namespace.
  Result<void> EndMount(milliseconds timeout, const std::function<bool()>& is_mounted) {
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
      Print(stderr, "weightfs: {}: its daemon does not respond; changes made through shared mappings may be lost\n",
            mount_.source);
    }
    return {};
  }

  // True if the mount had lost its daemon when this object was created.
  bool IsGone() const {
    // A command that works on the store serves no mount.
    const bool works = holder_.state == StoreHolder::State::kWorking && holder_.noted > 0;
    return lock_ && (!holder_.held || works || IsOther(holder_) ||
                     (holder_.process > 0 && IsEnding(holder_.process)));
  }

  // True if `directory` is the daemon's own mount point, or if the daemon does not say.
  bool IsMainMount(const std::string& directory) const {
    return holder_.directory.empty() || holder_.directory == directory;
  }

  // The holder of the store when this object was created.
  const StoreHolder& holder() const { return holder_; }

 private:
  StoreHolder Look() const { return lock_ ? ReadStoreHolder(lock_) : StoreHolder(); }

  // True if the holder does not serve this mount.
  bool IsOther(const StoreHolder& holder) const {
    if (holder.state == StoreHolder::State::kServing && !holder.filesystem.Has(mount_)) return true;
    return holder.noted > 0 && holder_.noted > 0 && holder.noted != holder_.noted;
  }

  // Reads what the server left in the lock file: nothing after success, its process number if it did not finish.
  Result<End> Verdict() const {
    const StoreHolder left = Look();
    if (IsOther(left)) return End{.closed = true};
    if (!left.error.empty()) {
      return MakeError(ErrorCode::kIo, "unmounted, but not everything reached the device: {}; run 'weightfs verify'",
                       left.error);
    }
    if (left.noted == 0 && holder_.held && holder_.noted == 0) {
      return Error{ErrorCode::kIo,
                   "unmounted, but its lock file did not name its process, so it is unknown whether everything reached "
                   "the device; its log says more"};
    }
    if (left.noted == 0) return End{.closed = true};
    return Error{ErrorCode::kIo,
                 "unmounted, but its process ended without closing the store; unsynced data may be lost; "
                 "the next mount recovers the rest"};
  }

  // Sleeps briefly, or until the daemon ends.
  void Sleep() const {
    pollfd ended{process_.get(), POLLIN, 0};
    poll(&ended, process_ ? 1 : 0, static_cast<int>(kPoll.count()));
  }

  void Report(milliseconds waited, milliseconds timeout, const std::optional<Keepers>& keepers) {
    const bool kept = keepers.has_value() && !keepers->empty();
    if (isatty(STDERR_FILENO) != 0 ? waited < kPoll : waited < kLong) return;
    const std::string line =
        kept ? fmt::format("waiting at most {:g} s: {}", static_cast<double>(timeout.count()) / 1000,
                           DescribeKeepers(*keepers))
             : fmt::format("waiting until {} has written everything", DescribeProcess(holder_.process));
    if (line == reported_) return;
    reported_ = line;
    Print(stderr, "weightfs: {}: {}\n", mount_.source, line);
  }

  const MountEntry mount_;
  const UniqueFd lock_;
  const StoreHolder holder_;
  const UniqueFd process_;
  std::string reported_;
};

struct Arguments {
  std::string directory, space;
  bool lazy = false, force = false, read_only = false;
  double timeout = kDefaultTimeout;

  milliseconds limit() const { return milliseconds(static_cast<int64_t>(timeout * 1000)); }
  UnmountMode mode() const { return force ? UnmountMode::kForce : lazy ? UnmountMode::kLazy : UnmountMode::kPlain; }
};

int ReportBusy(const MountEntry& mount, const Keepers& found) {
  const auto& users = found.users;
  if (users.empty()) {
    return Fail({ErrorCode::kBusy,
                 fmt::format("{}: cannot be unmounted: it is in use, or belongs to another user; {}", mount.directory,
                             geteuid() == 0 ? "another mount may be below it (findmnt -R)"
                                            : "run it as root to list its users")});
  }
  Fail({ErrorCode::kBusy,
        fmt::format("{}: in use by {} process{}; end {} and unmount again (-l frees the directory at "
                    "once, -f ends the mount for all)",
                    mount.directory, users.size(), users.size() == 1 ? "" : "es", users.size() == 1 ? "it" : "them")});
  Print(stderr, KeepersTable(found));
  return kFailure;
}

// What came of an attempt to unmount. EBUSY: `users` use the mount, or something that cannot be listed.
struct Outcome {
  int error = 0;
  Keepers users = {};
};

Result<int> ReportFailure(const Arguments& arguments, const MountEntry& mount, const Outcome& outcome) {
  const int error = outcome.error;
  if (error == EBUSY && arguments.read_only) {
    RETURN_IF_ERROR(RemountReadOnly(mount, true));
    Print(stderr, "weightfs: {}: in use, so it is read-only from now on\n", mount.directory);
    return kSuccess;
  }
  if (error == EBUSY) return ReportBusy(mount, outcome.users);
  std::string why = std::strerror(error);
  if (error == ENOENT) why = "fusermount3 is not installed; install the package fuse3, or unmount as root";
  if (error == EPERM && arguments.force) {
    why = "-f needs root, or the owner of the mount and /sys/fs/fuse/connections; try -l";
  }
  return MakeError(ErrorCode::kIo, "{}: cannot be unmounted: {}", mount.directory, why);
}

bool IsThere(const MountEntry& mount) {
  const auto mounts = MountsOf(mount.filesystem());
  return std::ranges::any_of(mounts, [&](const MountEntry& one) { return one.id == mount.id; });
}

// Tries again while nobody can be listed who uses the mount.
Outcome UnmountWhenFree(const Arguments& arguments, const MountEntry& mount) {
  for (int tries = 1;; ++tries) {
    Outcome outcome;
    if (IsThere(mount)) outcome.error = UnmountDirectory(mount.directory, arguments.mode(), mount.device);
    if (outcome.error != EBUSY || arguments.read_only) return outcome;
    outcome.users = UsersOf(mount.filesystem());
    if (!outcome.users.users.empty() || tries == kTries) return outcome;
    std::this_thread::sleep_for(kBetweenTries);
  }
}

// Reports that the daemon keeps running. This is an error unless the user asked for it, because the command promises
// that everything is on the device.
int ReportKept(const Arguments& arguments, const MountEntry& mount, const ServerWatch::End& end) {
  const std::string text = fmt::format("{}: unmounted here, but {} still serves {}: {}; {}", mount.directory,
                                       DescribeProcess(end.holder.process), mount.source, DescribeKeepers(end.keepers),
                                       KeepersAdvice(end.keepers, end.holder.process));
  Print(stderr, "weightfs: {}\n{}", text, KeepersTable(end.keepers));
  return arguments.lazy ? kSuccess : kStillServed;
}

Result<int> Run(const Arguments& arguments) {
  RETURN_IF_ERROR(EnterMountNamespace(arguments.space));
  ASSIGN_OR_RETURN(const MountEntry mount, FindMount(arguments.directory));
  ServerWatch server(mount);
  // If started inside the mount, this process must not keep it busy.
  if (chdir("/") != 0) return SystemError("/", "chdir");
  const bool was_gone = server.IsGone();
  const UnmountMode mode = arguments.mode();
  if (mode == UnmountMode::kForce && !was_gone) {
    // Otherwise changes through shared mappings, and writes in progress, would be lost with the connection.
    const auto ended = server.EndMount(arguments.limit(), [&] { return IsThere(mount); });
    if (!ended.has_value()) return Error{ended.error().code, mount.directory + ": " + Line(ended.error())};
  }
  const Outcome outcome = UnmountWhenFree(arguments, mount);
  // The daemon may have ended the mount meanwhile.
  const bool failed = outcome.error != 0 && (mode != UnmountMode::kForce || IsThere(mount));
  if (failed) return ReportFailure(arguments, mount, outcome);
  if (was_gone) {
    const bool is_served = server.holder().held && !server.holder().IsEnding();
    Print(stderr, "weightfs: {}: its process had already ended; {}\n", mount.source,
          is_served ? fmt::format("now the store is in use by {}", DescribeProcess(server.holder().process))
                    : "the next mount recovers the store");
    return kSuccess;
  }
  // Only a bind mount was unmounted, and the filesystem is still mounted: nothing to wait for.
  const bool forced = mode == UnmountMode::kForce;
  if (!forced && !server.IsMainMount(mount.directory) && !MountsOf(mount.filesystem()).empty()) return kSuccess;
  const auto end = server.Wait(arguments.limit(), mode == UnmountMode::kLazy, forced);
  if (!end.has_value()) return Error{end.error().code, mount.source + ": " + Line(end.error())};
  return end->closed ? kSuccess : ReportKept(arguments, mount, *end);
}

}  // namespace

Command UmountCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("umount", "Unmount; returns when everything is on the device");
  command.Add("DIR", &arguments->directory, "Mount point of the store, or of a bind mount of it");
  command.Add("-l,--lazy", &arguments->lazy,
              "Free the directory at once; programs that use the mount keep their open files, and the daemon ends "
              "after the last of them");
  command.Add("-f,--force", &arguments->force,
              "End the mount even if programs use it or its daemon hangs: they get errors; data that they wrote before "
              "is kept");
  command.Add("-r,--read-only", &arguments->read_only, "If the mount is in use, make it read-only instead");
  command.AddDecimal("--timeout SECONDS", &arguments->timeout,
                     fmt::format("Maximum wait while a bind mount or another mount namespace keeps the mount; with -f, "
                                 "for a daemon that does not respond ({:.0f})",
                                 kDefaultTimeout),
                     "60", kLongestTimeout);
  command.Add("-N,--namespace PID", &arguments->space, "Unmount in the mount namespace of this process, or file",
              "4711");
  command.footer =
      "If programs use the mount, umount lists them and fails. The daemon may take any amount of time to write its\n"
      "data.\n\n"
      "Exit codes: 0 everything is on the device (with -l: the directory is free), 1 failure, 2 wrong usage,\n"
      "3 unmounted here, but the daemon continues: a container, another mount namespace or a bind mount, which is\n"
      "listed, holds the filesystem.\n\n"
      "Examples:\n"
      "  weightfs umount /mnt/tensors\n"
      "  weightfs umount /mnt/tensors --timeout 60";
  command.run = [arguments] { return Run(*arguments); };
  return command;
}

}  // namespace weightfs::cli
