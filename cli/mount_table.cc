// SPDX-License-Identifier: Apache-2.0
#include "cli/mount_table.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <filesystem>

#include "common/make_error.h"
#include "common/processes.h"
#include "common/shell_quote.h"
#include "lease/on_mount.h"
#include "store/volume/device_contents.h"

namespace weightfs::cli {

namespace fs = std::filesystem;

Result<std::vector<MountEntry>> WeightfsMounts() {
  ASSIGN_OR_RETURN(auto mounts, ReadMounts());
  std::erase_if(mounts, [](const MountEntry& mount) { return !IsWeightfs(mount); });
  return mounts;
}

Result<MountEntry> FindMount(const std::string& path) {
  const std::string resolved = ResolvePath(path);
  ASSIGN_OR_RETURN(const auto mounts, WeightfsMounts());
  for (auto mount = mounts.rbegin(); mount != mounts.rend(); ++mount) {
    if (mount->directory != resolved) continue;
    const auto top = TopMountOn(resolved);
    if (!top.has_value() || top->id == mount->id) return *mount;
    return MakeError(ErrorCode::kBusy, "{}: {} ({}) is mounted over the weightfs there; unmount that first: umount {}",
                     path, top->source, top->type, ShellQuote(path));
  }
  for (const MountEntry& mount : mounts) {
    const bool device = fmt::format(",{},", mount.source).find(fmt::format(",{},", resolved)) != std::string::npos;
    if (device || ResolvePath(mount.source) == resolved) {
      return MakeError(ErrorCode::kNotFound, "{}: this is the store; it is mounted on {}: weightfs umount {}", path,
                       mount.directory, ShellQuote(mount.directory));
    }
  }
  return MakeError(ErrorCode::kNotFound,
                   "{}: no weightfs is mounted there; 'findmnt -t fuse.weightfs' lists the mounts", path);
}

std::optional<MountEntry> FindServedMount(const StoreHolder& holder) {
  // A free lock file may name the filesystem of an earlier mount.
  if (!holder.held || holder.state != StoreHolder::State::kServing) return std::nullopt;
  std::vector<MountEntry> mounts = MountsOf(holder.filesystem);
  for (MountEntry& mount : mounts) {
    if (mount.directory == holder.directory) return std::move(mount);
  }
  return mounts.empty() ? std::nullopt : std::optional(std::move(mounts.back()));
}

bool IsMountOf(const MountEntry& mount, const StoreLocation& store) {
  if (!store.described) return ResolvePath(mount.source) == ResolvePath(store.directory);
  return mount.source == store.name || FindServedAs(mount.source, store);
}

bool NamesDevices(const std::string& argument) {
  struct stat status = {};
  if (stat(argument.c_str(), &status) != 0) return errno == ENOENT && argument.find(',') != std::string::npos;
  if (S_ISBLK(status.st_mode)) return true;
  if (!S_ISREG(status.st_mode) || FindMountAbove(argument)) return false;
  const auto contents = DescribeContents(argument);
  return contents && *contents && (*contents)->of_store;
}

bool IsBelievable(const MountEntry& mount, const StoreLocation& source) {
  if (HasOption(mount.options, "user_id=0") || HasOption(mount.options, fmt::format("user_id={}", geteuid()))) {
    return true;
  }
  const pid_t process = ReadStoreHolder(source.directory).process;
  const auto description = Describe(source);
  if (process <= 0 || !description) return false;
  return std::ranges::all_of(description->devices, [&](const StoreDescription::Device& device) {
    const UniqueFd file(open(DevicePath(source.directory, device).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    return file && FindLockHolder(file.get(), process) == process;
  });
}

StoreLocation FindServed(const StoreLocation& named) {
  const auto mounts = WeightfsMounts();
  if (!mounts) return named;
  for (const MountEntry& mount : *mounts) {
    auto served = FindServedAs(mount.source, named);
    if (!served || !ReadStoreHolder(served->directory).held) continue;
    if (IsBelievable(mount, *served)) return *std::move(served);
  }
  return named;
}

Result<UniqueFd> OpenLockOf(const MountEntry& mount) {
  constexpr std::string_view kIndexWord = ",index=";
  auto lock = StoreLock::OpenToWatch(mount.source);
  if (lock) return lock;
  if (const size_t index = mount.source.rfind(kIndexWord); index != std::string::npos) {
    return StoreLock::OpenToWatch(mount.source.substr(index + kIndexWord.size()));
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(kRootIndexes, error)) {
    auto found = StoreLock::OpenToWatch(entry.path().string());
    if (found && ReadStoreHolder(*found).filesystem.Has(mount)) return found;
  }
  return lock;
}

std::optional<MountEntry> FindMountOfStore(const StoreLocation& store, const StoreHolder& holder) {
  // By the note of the daemon first: it may know the store by another path, and dead mounts may have this path.
  auto served = FindServedMount(holder);
  // A copy of the devices has the same directory for its index.
  if (served && (!store.described || IsMountOf(*served, store))) return served;
  auto mounts = WeightfsMounts();
  if (!mounts.has_value()) return std::nullopt;
  const auto found = std::find_if(mounts->rbegin(), mounts->rend(), [&](const MountEntry& mount) {
    if (!IsMountOf(mount, store)) return false;
    return !store.described || IsBelievable(mount, FindServedAs(mount.source, store).value_or(store));
  });
  return found == mounts->rend() ? std::nullopt : std::optional(std::move(*found));
}

std::optional<MountEntry> FindMountAbove(const std::string& path) {
  auto mounts = ReadMounts();
  if (!mounts.has_value()) return std::nullopt;
  const std::string resolved = ResolvePath(path);
  MountEntry* best = nullptr;
  for (MountEntry& mount : *mounts) {
    const bool inside = resolved == mount.directory || resolved.starts_with(mount.directory + "/");
    if (inside && (best == nullptr || mount.directory.size() >= best->directory.size())) best = &mount;
  }
  return best == nullptr || !IsWeightfs(*best) ? std::nullopt : std::optional(std::move(*best));
}

Error AccessError(const std::string& path, std::string_view what) {
  Error error = SystemError(path, what);
  if (error.code != ErrorCode::kAccess) return error;
  const auto mount = FindMountAbove(path);
  if (mount.has_value() && !HasOption(mount->options, "allow_other")) {
    error.what += "; the mount is for its user alone: run this as that user, or mount with -o allow_other";
  }
  return error;
}

Result<UniqueFd> OpenOnMount(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return AccessError(path, "cannot be opened");
  if (lease::IsOnMount(file.get())) return file;
  return MakeError(ErrorCode::kInvalid, "{}: not in a mount of weightfs; 'findmnt -t fuse.weightfs' lists the mounts",
                   path);
}

Result<void> CheckIsNoMount(const std::string& path, bool will_lock) {
  const auto mount = FindMountAbove(path);
  if (!mount.has_value() || HoldsStore(path)) return {};
  return MakeError(ErrorCode::kInvalid, "{}: this {} the mount of the store {}; name the store{}", path,
                   ResolvePath(path) == mount->directory ? "is" : "is in", mount->source,
                   will_lock ? ", and unmount it first: weightfs umount " + ShellQuote(mount->directory) : "");
}

std::string ResolvePath(const std::string& path) {
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) != nullptr) return resolved;
  // The last component may be a mount whose process is gone (ENOTCONN): what leads to it can still be resolved.
  std::error_code error;
  fs::path whole = fs::absolute(path, error).lexically_normal();
  if (error) return path;  // an empty path, or a relative one in a directory that was removed: it names nothing
  if (!whole.has_filename()) whole = whole.parent_path();
  if (realpath(whole.parent_path().c_str(), resolved) != nullptr) {
    return (fs::path(resolved) / whole.filename()).string();
  }
  return whole.string();
}

Result<void> EnterMountNamespace(const std::string& name) {
  if (name.empty()) return {};
  const bool is_process = std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
  const std::string path = is_process ? fmt::format("/proc/{}/ns/mnt", name) : name;
  // Opens the current /proc, which is needed to read the mount table: a container's /proc may not show this process.
  if (ProcDirectory() < 0) return SystemError("/proc", "cannot be opened");
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() >= 0 && setns(file.get(), CLONE_NEWNS) == 0) return {};
  return MakeError(ErrorCode::kAccess,
                   "{}: this mount namespace cannot be entered: {}; give the number of one of its processes, as root",
                   name, std::strerror(errno));
}

}  // namespace weightfs::cli
