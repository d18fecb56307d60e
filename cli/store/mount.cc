// SPDX-License-Identifier: Apache-2.0
// weightfs mount: serves a store at a directory.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <spdlog/sinks/sink.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "cli/commands.h"
#include "cli/help/usage.h"
#include "cli/keepers.h"
#include "cli/mount_table.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "cli/store/daemon.h"
#include "cli/store/remount.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/printable.h"
#include "common/shell_quote.h"
#include "fs/kernel_features.h"
#include "fs/mount.h"
#include "fs/mountpoint.h"
#include "store/volume/store_session.h"

namespace weightfs::cli {
namespace {

struct Arguments {
  std::string store, directory, space;
  std::vector<std::string> options;
  bool foreground = false, read_only = false, from_table = false;
};

struct Plan {
  StoreLocation store;
  StoreLocation served;  // where a daemon has it that may still be ending
  bool foreground = false;
  OpenOptions open;
  StoreOptions store_options;
  MountOptions mount;
};

Result<std::string> RealDirectory(const std::string& path, std::string_view what) {
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) == nullptr) {
    if (errno == ENOTCONN) {
      return MakeError(ErrorCode::kBusy,
                       "{}: holds a mount whose process has ended; unmount it first: weightfs umount {}", path,
                       ShellQuote(path));
    }
    return MakeError(ErrorCode::kNotFound, "{}: {}; give {}", path, std::strerror(errno), what);
  }
  struct stat status = {};
  if (stat(resolved, &status) != 0 || !S_ISDIR(status.st_mode)) {
    return MakeError(ErrorCode::kNotDirectory, "{}: not a directory; give {}", path, what);
  }
  return std::string(resolved);
}

// Returns the directory to mount on. A mount that a killed server of this store left there counts as the empty
// directory below it: Serve removes it once the lock shows that no process serves the store.
Result<std::string> MountDirectory(const std::string& path, const StoreLocation& store) {
  const auto mount = FindMount(path);
  if (mount.has_value() && IsMountOf(*mount, store)) return mount->directory;
  ASSIGN_OR_RETURN(std::string directory, RealDirectory(path, "an existing directory to mount on"));
  if (mount.has_value()) {
    return MakeError(ErrorCode::kBusy,
                     "{}: already the mount of {}; unmount it first (weightfs umount {}), or mount elsewhere",
                     directory, mount->source, ShellQuote(directory));
  }
  return directory;
}

// This process holds the store's lock, so any mount of this store there has lost its server.
Result<void> RemoveDeadMounts(const Plan& plan) {
  for (auto mount = FindMount(plan.mount.mountpoint); mount.has_value() && IsMountOf(*mount, plan.store);
       mount = FindMount(plan.mount.mountpoint)) {
    spdlog::warn("{}: removing a stale mount whose daemon was killed", mount->directory);
    if (const int error = UnmountDirectory(mount->directory, UnmountMode::kLazy); error != 0) {
      return MakeError(ErrorCode::kBusy,
                       "{}: the mount of a killed daemon cannot be removed: {}; as root run: umount -l {}",
                       mount->directory, std::strerror(error), ShellQuote(mount->directory));
    }
  }
  return {};
}

// Programs that wrote there while nothing was mounted filled the disk of the directory.
void WarnOfHiddenEntries(const std::string& mountpoint) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(mountpoint, error);
  const auto hidden = error ? 0 : std::distance(begin(entries), end(entries));
  if (hidden == 0) return;
  spdlog::warn("{}: not empty: the mount hides {} {} of the directory below it; to keep programs from writing there "
               "without a mount, empty it and use 'chattr +i' on it",
               Printable(mountpoint), hidden, hidden == 1 ? "entry" : "entries");
}

Result<Plan> MakePlan(const Arguments& arguments) {
  Plan plan;
  plan.foreground = arguments.foreground;
  for (const std::string& options : arguments.options) {
    RETURN_IF_ERROR(ApplyMountOptions(options, plan.mount, plan.store_options));
  }
  RETURN_IF_ERROR(CheckIsNoMount(arguments.store));
  ASSIGN_OR_RETURN(plan.store, FindStore(arguments.store, {.index = plan.mount.index}));
  if (!plan.store.described) {
    ASSIGN_OR_RETURN(plan.store, RealDirectory(plan.store.directory, "a store: its directory, which 'weightfs format' "
                                                                "creates, or its devices"));
  }
  plan.served = FindServed(plan.store);
  ASSIGN_OR_RETURN(plan.mount.mountpoint, MountDirectory(arguments.directory, plan.store));
  if (!plan.store.described && !HoldsStore(plan.store.directory) && HoldsStore(plan.mount.mountpoint)) {
    return MakeError(ErrorCode::kInvalid,
                     "{}: not a weightfs store, but {} is one; the store comes first: weightfs mount {} {}",
                     plan.store.name, plan.mount.mountpoint, ShellQuote(plan.mount.mountpoint),
                     ShellQuote(plan.store.name));
  }
  RETURN_IF_ERROR(CheckApart(plan.mount.mountpoint, plan.store.directory));
  if (plan.store.described) {
    for (const auto& device : plan.store.described->devices) {
      std::error_code error;
      const auto path = std::filesystem::weakly_canonical(device.path, error);
      RETURN_IF_ERROR(CheckApart(plan.mount.mountpoint, path.string()));
    }
  }
  if (std::ranges::find(plan.mount.own_options, "cache_memory") == plan.mount.own_options.end()) {
    plan.store_options.hot_memory = DefaultHotMemory(plan.mount, plan.store_options);
  }
  RETURN_IF_ERROR(CheckMemory(plan.mount, plan.store_options));
  if (arguments.read_only) plan.mount.read_only = true;
  plan.store_options.read_only = plan.mount.read_only;
  plan.open.read_only = plan.open.damaged_too = plan.mount.read_only;
  plan.mount.source = plan.store.name;
  return plan;
}

// In the foreground the log goes to the terminal or to the journal. In the background it goes to a file; until the
// mount is ready, warnings also go to the caller.
Result<DaemonLog> StartLog(const Plan& plan) {
  if (plan.foreground) return DaemonLog();
  if (plan.store.described && access(plan.store.directory.c_str(), W_OK) != 0) {
    spdlog::warn("{}: {}; this mount has no log (-f logs to the terminal)", plan.store.directory, std::strerror(errno));
    return DaemonLog();
  }
  return DaemonLog::Start(plan.store.directory);
}

// Only the process that systemd has started reports to it.
Result<std::unique_ptr<ServiceNotifier>> ConnectToManager(const Plan& plan) {
  const char* const address = plan.foreground ? std::getenv("NOTIFY_SOCKET") : nullptr;
  return ServiceNotifier::Connect(address == nullptr ? "" : address);
}

void LeaveCaller(const Plan& plan, int log, StartReport& report) {
  if (!plan.foreground) LimitStderr(spdlog::level::off);
  report.Ready(log);
}

// A mount in the foreground of a terminal ends with it. All others outlive terminals, so for them SIGHUP is free to
// mean what it means to most daemons.
bool EndsOnHangup(const Plan& plan) {
  return plan.foreground && UniqueFd(open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC));
}

void LogStart(const Plan& plan, const Mount& mount) {
  spdlog::info("weightfs {} serves {} on {}{}", WEIGHTFS_VERSION, plan.store.name, plan.mount.mountpoint,
               plan.mount.read_only ? ", read-only" : "");
  std::string features;
  for (const std::string& feature : mount.Features()) features += (features.empty() ? "" : ", ") + feature;
  spdlog::info("kernel: {}", features);
  spdlog::info("direct path: {}", DirectAccessName(plan.mount.direct));
}

// Ends the process, as if it did not catch the signal.
[[noreturn]] void EndBy(int number) {
  signal(number, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(number);
  std::_Exit(kFailure);
}

// What a signal ends: the process while it opens the store, which is as safe as a crash and may take long, and from
// then on the mount. Thread-safe.
class SignalTarget {
 public:
  explicit SignalTarget(bool hangup_ends) : hangup_ends_(hangup_ends) {}
  void OnSignal(int signal) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (signal == SIGHUP && !hangup_ends_) return log_.Reopen();
    if (!mounting_) EndBy(signal);
    spdlog::info("{}: unmounting", strsignal(signal));
    ended_ = true;
    if (mount_ != nullptr) mount_->Stop();
  }
  // Call this before there is a mount.
  void BeginMount(DaemonLog log) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    log_ = std::move(log);
    mounting_ = true;
  }
  void Watch(Mount& mount) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    mount_ = &mount;
    if (ended_) mount_->Stop();
  }
  int log_descriptor() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return log_.descriptor();
  }

 private:
  const bool hangup_ends_;
  Mutex mutex_;
  DaemonLog log_ GUARDED_BY(mutex_);
  bool mounting_ GUARDED_BY(mutex_) = false;
  bool ended_ GUARDED_BY(mutex_) = false;
  Mount* mount_ GUARDED_BY(mutex_) = nullptr;
};

// Serves the store until the mount ends. Mount's contract requires the order Run, close the store, ~Mount, ~Store.
Result<void> Serve(Plan plan, StartReport& report) {
  ReportCrashes();
  spdlog::set_level(plan.mount.log_level);
  if (!plan.foreground) {
    LimitStderr(std::max(plan.mount.log_level, spdlog::level::warn));
    KeepForFile();
  }
  RETURN_IF_ERROR(WaitUntilReleased(plan.served));
  const bool hangup_ends = EndsOnHangup(plan);
  SignalTarget target(hangup_ends);
  BlockEndSignals(hangup_ends);  // called this late, because the wait takes up to a minute and must be interruptible
  std::optional<SignalThread> signals(std::in_place);
  RETURN_IF_ERROR(signals->Start([&target](int signal) { target.OnSignal(signal); }));
  ASSIGN_OR_RETURN(const auto manager, ConnectToManager(plan));
  std::optional<ProgressBar> bar("mount");
  plan.open.progress = [&bar, &manager](const Progress& progress) {
    bar->Update(progress);
    manager->Extend();
  };
  ASSIGN_OR_RETURN(auto session, StoreSession::Open(plan.store, plan.open, plan.store_options));
  bar.reset();
  // Called this late, because a store that cannot be opened must be left unchanged.
  ASSIGN_OR_RETURN(DaemonLog log, StartLog(plan));
  target.BeginMount(std::move(log));
  if (!session->was_clean()) {
    spdlog::warn("{}: was not unmounted cleanly; recovered to its last commit", plan.store.name);
  }
  RETURN_IF_ERROR(RemoveDeadMounts(plan));
  WarnOfHiddenEntries(plan.mount.mountpoint);
  plan.mount.store_id = session->description().id;
  plan.mount.store_format = session->description().format;
  plan.mount.ready = [&plan, &target, &report, &manager] {
    LeaveCaller(plan, target.log_descriptor(), report);
    manager->Ready(fmt::format("Serves {} on {}", Printable(plan.store.name), Printable(plan.mount.mountpoint)));
  };
  plan.mount.ended = [&session, &manager] {
    session->NoteClosing();
    manager->Stopping("Writes the last data to the device");
  };
  ASSIGN_OR_RETURN(auto mount, Mount::Create(session->store(), plan.mount));
  session->NoteServing(mount->identity(), plan.mount.mountpoint);
  LogStart(plan, *mount);
  target.Watch(*mount);
  const auto served = mount->Run();
  signals.reset();
  auto closed = session->Close();
  if (closed.has_value()) spdlog::info("unmounted; everything is on the device");
  RETURN_IF_ERROR(served);
  return closed;
}

// The remount option may appear at any position in any of the option lists.
bool AsksForRemount(const Arguments& arguments) {
  return std::ranges::any_of(arguments.options, [](const std::string& list) { return HasOption(list, "remount"); });
}

Result<int> RunRemount(const Arguments& arguments) {
  std::vector<std::string> options = {"remount"};
  options.insert(options.end(), arguments.options.begin(), arguments.options.end());
  if (arguments.read_only) options.emplace_back("ro");
  RETURN_IF_ERROR(Remount(arguments.store, arguments.directory, options, arguments.from_table));
  return kSuccess;
}

Result<int> Run(const Arguments& arguments) {
  // As in a unit whose environment file lacks a line.
  if (arguments.store.empty() || arguments.directory.empty()) return FailUsage("mount", "STORE or DIR is empty");
  RETURN_IF_ERROR(EnterMountNamespace(arguments.space));
  if (AsksForRemount(arguments)) return RunRemount(arguments);
  if (!arguments.space.empty() && access("/proc/self/", F_OK) != 0) {
    return MakeError(ErrorCode::kNotSupported,
                     "{}: its /proc belongs to another PID namespace, where this daemon cannot run; mount from inside "
                     "that container",
                     arguments.space);
  }
  auto plan = MakePlan(arguments);
  if (!plan.has_value()) {
    // A service manager must not try a wrong option again.
    return Fail(plan.error(), plan.error().code == ErrorCode::kInvalid ? kUsage : kFailure);
  }
  if (arguments.from_table) {
    // The source of a mount with index= is not that of its line in /etc/fstab, so 'mount -a' mounts it again.
    const auto served = FindServedMount(ReadStoreHolder(plan->served.directory));
    const auto top = TopMountOn(plan->mount.mountpoint);
    const bool there = served && served->directory == plan->mount.mountpoint && top && top->id == served->id;
    // Of the same devices, not of a copy; and as read-only as is asked for.
    if (there && IsMountOf(*served, plan->store) && HasOption(served->flags, "ro") == plan->mount.read_only) {
      spdlog::warn("{}: already the mount of {}; nothing was changed", served->directory, served->source);
      return kSuccess;
    }
  }
  StartReport report;
  if (!plan->foreground) {
    ASSIGN_OR_RETURN(UniqueFd parent, GoToBackground());
    report = StartReport(std::move(parent));
  }
  const auto served = Serve(std::move(*plan), report);
  if (served.has_value()) return kSuccess;
  if (report.Failed(Line(served.error()))) return kFailure;
  // The start has been reported. The error goes to the log in the background, and to standard error in the foreground.
  spdlog::error("{}", ToString(served.error()));
  return kFailure;
}

std::string OptionsText() {
  std::string options, experts = "Options for experts, who measure before and after:\n";
  for (const MountOptionHelp& option : DescribeMountOptions()) {
    const std::string name = fmt::format("{}{}{}", option.name, option.value.empty() ? "" : "=", option.value);
    (option.expert ? experts : options) += HelpEntry(name, std::string(option.meaning));
  }
  return options + HelpEntry("of the kernel", fmt::format("{}", fmt::join(KernelMountOptions(), ", "))) + experts +
         HelpEntry("features of without=", fmt::format("{}", fmt::join(KnownFeatures(), ", ")));
}

}  // namespace

Command MountCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("mount", "Serve a store at a directory; returns when the mount is ready");
  command.Add("STORE", &arguments->store, "Directory of the store, or its devices, with commas between them");
  command.Add("DIR", &arguments->directory, "Directory to mount on");
  command.Add("-o OPTIONS", &arguments->options, "Options, separated by commas; see below", "allow_other,commit=1");
  command.Add("-r,--read-only", &arguments->read_only, "The same as -o ro");
  command.Add("-f,--foreground", &arguments->foreground, "Stay in the foreground and log to the terminal");
  command.Add("-N,--namespace PID", &arguments->space, "Mount in the mount namespace of this process, or file", "4711");
  command.Add("--from-table", &arguments->from_table, "").hidden = true;  // by mount(8)'s helper
  command.footer =
      "Options of -o:\n" + OptionsText() +
      "\nA store is its devices: they have everything. The index of a store that is named by its devices is in\n"
      "/var/cache/weightfs/ID (root) or ~/.cache/weightfs/ID, and is rebuilt where it is missing. One device is\n"
      "enough if the others are found by their superblocks.\n"
      "A mount in the background logs to weightfs.log in the directory of the store or of its index.\n\n"
      "Examples:\n"
      "  weightfs mount /srv/tensors /mnt/tensors\n"
      "  weightfs mount /dev/disk/by-id/nvme-A /mnt/tensors\n"
      "  weightfs mount /srv/tensors /mnt/tensors -o allow_other,commit=1\n"
      "  weightfs mount /srv/tensors /mnt/tensors -o remount,ro\n"
      "  in /etc/fstab: /srv/tensors /mnt/tensors weightfs allow_other,nofail 0 0";
  command.run = [arguments] { return Run(*arguments); };
  return command;
}

}  // namespace weightfs::cli
