// SPDX-License-Identifier: Apache-2.0
#include "cli/store/remount.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstring>

#include "cli/mount_table.h"
#include "common/log.h"
#include "common/make_error.h"
#include "common/shell_quote.h"
#include "fs/mount_flags.h"
#include "lease/ioctl.h"

namespace weightfs::cli {
namespace {

// True if the mount is read-only by its own flag (mount -o remount,bind,ro) or by the store's.
bool IsReadOnly(const MountEntry& mount) { return HasOption(mount.flags, "ro") || HasOption(mount.options, "ro"); }

Error Busy(const MountEntry& mount) {
  std::string users;
  for (const MountUser& user : FindMountUsers(mount.filesystem()).users) {
    users += fmt::format("{}{} {}: {}", users.empty() ? "" : ", ", user.process, user.command, user.reason);
  }
  return MakeError(
      ErrorCode::kBusy,
      "{}: cannot become read-only while files are open for writing ({}); end these programs and try again",
      mount.directory, users.empty() ? "by processes that are not visible here" : users);
}

// Changes the daemon's state. kReadOnly if a store that was opened read-only is to become writable.
Result<void> TellDaemon(const MountEntry& mount, int directory, bool read_only) {
  const __u32 value = read_only ? 1 : 0;
  if (ioctl(directory, WEIGHTFS_IOC_READ_ONLY, &value) == 0) return {};
  const int error = errno;
  const std::string where = ShellQuote(mount.directory);
  if (error == EROFS && !read_only) {
    return MakeError(
        ErrorCode::kReadOnly,
        "{}: its store was opened read-only; to open it for writing, run: weightfs umount {} && weightfs mount {} {}",
        mount.directory, where, ShellQuote(mount.source), where);
  }
  if (error == ENOTTY) {
    return MakeError(ErrorCode::kNotSupported,
                     "{}: its daemon is an older weightfs, which cannot be remounted; unmount it and mount it again",
                     mount.directory);
  }
  return MakeError(ErrorCode::kIo, "{}: {}; see the log of the mount of {}", mount.directory, std::strerror(error),
                   mount.source);
}

}  // namespace

Result<void> RemountReadOnly(const MountEntry& mount, bool read_only, const std::vector<std::string>& flags) {
  if (geteuid() != 0) {
    return MakeError(ErrorCode::kPermission, "{}: remount needs root; or unmount it and mount it with other options",
                     mount.directory);
  }
  const UniqueFd directory(open(mount.directory.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (directory.get() < 0) {
    return MakeError(ErrorCode::kIo, "{}: {}", mount.directory, std::strerror(errno));
  }
  // The daemon becomes writable first and read-only last, because it must accept everything that the kernel has
  // accepted.
  if (!read_only) RETURN_IF_ERROR(TellDaemon(mount, directory.get(), false));
  if (const auto changed = ChangeMount(mount.directory, flags, read_only); !changed.has_value()) {
    if (!read_only && IsReadOnly(mount)) (void)TellDaemon(mount, directory.get(), true);  // restore the previous state
    return read_only && changed.error().code == ErrorCode::kBusy ? Busy(mount) : changed.error();
  }
  return read_only ? TellDaemon(mount, directory.get(), true) : Result<void>();
}

Result<void> Remount(const std::string& store, const std::string& directory, const std::vector<std::string>& options,
                     bool from_table) {
  ASSIGN_OR_RETURN(const MountEntry mount, FindMount(directory));
  const auto named = FindStore(store);
  if (store != mount.source && !(named && IsMountOf(mount, *named))) {
    return MakeError(ErrorCode::kInvalid, "{}: is the mount of {}, not of {}", directory, mount.source, store);
  }
  MountOptions wanted;
  StoreOptions ignored;
  wanted.read_only = IsReadOnly(mount);
  for (const std::string& text : options) RETURN_IF_ERROR(ApplyMountOptions(text, wanted, ignored));
  if (!wanted.own_options.empty() && !from_table) {
    std::string names;
    for (const std::string& name : wanted.own_options) names += (names.empty() ? "" : ", ") + name;
    spdlog::warn("{}: a remount changes only ro, rw and the kernel's options; unchanged: {}", mount.directory, names);
  }
  return RemountReadOnly(mount, wanted.read_only, wanted.kernel_options);
}

}  // namespace weightfs::cli
