// SPDX-License-Identifier: Apache-2.0
// weightfs umount: unmounts, and returns when everything is on the device.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "cli/commands.h"
#include "cli/keepers.h"
#include "cli/mount_table.h"
#include "cli/output.h"
#include "cli/store/remount.h"
#include "cli/store/server_watch.h"
#include "common/shell_quote.h"
#include "fs/unmount.h"

namespace weightfs::cli {
namespace {

using std::chrono::milliseconds;

// An additional exit code: unmounted here, but the daemon keeps running for other users.
constexpr int kStillServed = 3;
constexpr double kDefaultTimeout = 10, kLongestTimeout = 86400;

// A mount that nobody holds open may still be in use for the duration of another process's system call.
constexpr int kTries = 20;
constexpr milliseconds kBetweenTries{100};

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
    Print(stderr, fmt::format("weightfs: {}: in use, so it is read-only from now on\n", mount.directory));
    return kSuccess;
  }
  if (error == EBUSY) return ReportBusy(mount, outcome.users);
  std::string why = std::strerror(error);
  if (error == ENOENT) why = "fusermount3 is not installed; install the package fuse3, or unmount as root";
  if (error == EPERM && arguments.force) {
    why = "-f needs root, or the owner of the mount and /sys/fs/fuse/connections; try -l";
  }
  return Error{ErrorCode::kIo, fmt::format("{}: cannot be unmounted: {}", mount.directory, why)};
}

bool IsThere(const MountEntry& mount) {
  const auto mounts = MountsOf(mount.filesystem());
  return std::any_of(mounts.begin(), mounts.end(), [&](const MountEntry& one) { return one.id == mount.id; });
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
  Print(stderr, fmt::format("weightfs: {}\n{}", text, KeepersTable(end.keepers)));
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
    Print(stderr,
          fmt::format("weightfs: {}: its process had already ended; {}\n", mount.source,
                      is_served ? fmt::format("now the store is in use by {}", DescribeProcess(server.holder().process))
                                : "the next mount recovers the store"));
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
