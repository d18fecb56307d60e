// SPDX-License-Identifier: Apache-2.0
#include "fs/mount_flags.h"

#include <fmt/format.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/mounts.h"

// Missing in some C libraries.
#ifndef MS_NOSYMFOLLOW
#define MS_NOSYMFOLLOW 256
#endif
#ifndef MS_LAZYTIME
#define MS_LAZYTIME (1 << 25)
#endif

namespace weightfs {
namespace {

constexpr unsigned long kAccessTimes = MS_NOATIME | MS_RELATIME | MS_STRICTATIME;

struct Flag {
  std::string_view name;
  unsigned long clear, set;
  bool libfuse;            // every libfuse passes it on, also through fusermount3
  bool restricts = false;  // ignoring it would permit what the option forbids
};

constexpr Flag kFlags[] = {
    {"dev", MS_NODEV, 0, true},
    {"nodev", 0, MS_NODEV, true, true},
    {"suid", MS_NOSUID, 0, true},
    {"nosuid", 0, MS_NOSUID, true, true},
    {"exec", MS_NOEXEC, 0, true},
    {"noexec", 0, MS_NOEXEC, true, true},
    {"sync", 0, MS_SYNCHRONOUS, true},
    {"async", MS_SYNCHRONOUS, 0, true},
    {"dirsync", 0, MS_DIRSYNC, true},
    {"atime", MS_NOATIME, 0, true},
    {"noatime", kAccessTimes, MS_NOATIME, true},
    {"diratime", MS_NODIRATIME, 0, false},
    {"nodiratime", 0, MS_NODIRATIME, false},
    {"relatime", kAccessTimes, MS_RELATIME, false},
    {"norelatime", MS_RELATIME, 0, false},
    {"strictatime", kAccessTimes, MS_STRICTATIME, false},
    {"nostrictatime", MS_STRICTATIME, 0, false},
    {"lazytime", 0, MS_LAZYTIME, false},
    {"nolazytime", MS_LAZYTIME, 0, false},
    {"symfollow", MS_NOSYMFOLLOW, 0, false},
    {"nosymfollow", 0, MS_NOSYMFOLLOW, false, true},
    // Options of mount(2) without an effect on FUSE, which prints nothing when it mounts and has neither inode versions
    // nor mandatory locks.
    {"silent", 0, 0, false},
    {"loud", 0, 0, false},
    {"iversion", 0, 0, false},
    {"noiversion", 0, 0, false},
    {"nomand", 0, 0, false},
};

const Flag* Find(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kFlags), std::end(kFlags), [&](const Flag& flag) { return flag.name == name; });
  return found == std::end(kFlags) ? nullptr : found;
}

void Apply(std::string_view option, unsigned long* flags) {
  if (const Flag* flag = Find(option)) *flags = (*flags & ~flag->clear) | flag->set;
}

Result<MountEntry> MountOn(const std::string& directory) {
  auto mount = TopMountOn(directory);
  if (mount.has_value()) return *std::move(mount);
  return Error{ErrorCode::kNotFound, fmt::format("{}: nothing is mounted there any more", directory)};
}

Result<void> Remount(const std::string& directory, unsigned long flags) {
  if (mount("none", directory.c_str(), nullptr, MS_REMOUNT | flags, nullptr) == 0) return {};
  const int error = errno;
  const auto code = error == EBUSY ? ErrorCode::kBusy : error == EPERM ? ErrorCode::kPermission : ErrorCode::kInvalid;
  return Error{code, fmt::format("{}: the kernel does not change the mount: {}", directory, std::strerror(error))};
}

}  // namespace

bool IsMountFlag(std::string_view option) { return Find(option) != nullptr; }

std::vector<std::string_view> MountFlagNames() {
  std::vector<std::string_view> names;
  for (const Flag& flag : kFlags) names.push_back(flag.name);
  return names;
}

bool LibfuseKnows(std::string_view option) {
  const Flag* flag = Find(option);
  return flag == nullptr || flag->libfuse;
}

unsigned long ChangeMountFlags(std::string_view current, std::span<const std::string> options) {
  unsigned long flags = 0;
  while (!current.empty()) {
    const size_t comma = current.find(',');
    Apply(current.substr(0, comma), &flags);
    current = comma == std::string_view::npos ? std::string_view() : current.substr(comma + 1);
  }
  // Without an access-time option the kernel uses strictatime, which it does not list.
  if ((flags & kAccessTimes) == 0) flags |= MS_STRICTATIME;
  for (const std::string& option : options) Apply(option, &flags);
  // The kernel interprets the absence of an access-time flag as "unchanged". relatime is its own default.
  if ((flags & kAccessTimes) == 0) flags |= MS_RELATIME;
  return flags;
}

Result<void> AddMountFlags(const std::string& directory, std::span<const std::string> options) {
  bool is_late = false;
  for (const std::string& option : options) {
    const Flag* flag = Find(option);
    if (flag == nullptr || flag->libfuse || (flag->set | flag->clear) == 0) continue;
    if (geteuid() != 0 && flag->restricts) {
      return Error{
          ErrorCode::kPermission,
          fmt::format("option {} needs root: fusermount3 cannot set it; mount as root or leave it out", option)};
    }
    is_late = true;
  }
  if (!is_late || geteuid() != 0) return {};
  ASSIGN_OR_RETURN(const MountEntry mount, MountOn(directory));
  // Apply all options in order: the last one wins, whoever set it first.
  return ChangeMount(directory, options, HasOption(mount.options, "ro"));
}

Result<void> ChangeMount(const std::string& directory, std::span<const std::string> options, bool read_only) {
  ASSIGN_OR_RETURN(const MountEntry mount, MountOn(directory));
  const unsigned long flags = ChangeMountFlags(mount.flags + "," + mount.options, options);
  return Remount(directory, flags | (read_only ? MS_RDONLY : 0));
}

}  // namespace weightfs
