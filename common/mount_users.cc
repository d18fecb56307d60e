// SPDX-License-Identifier: Apache-2.0
#include "common/mount_users.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <sstream>

#include "common/printable.h"
#include "common/processes.h"

namespace weightfs {
namespace {

// Root gets such errors only from filesystems that admit only their owner.
bool IsRefusal(int error) { return (error == EACCES || error == EPERM) && geteuid() != 0; }

// True when the target of a link in /proc is on the device. AT_STATX_DONT_SYNC keeps the kernel from asking a FUSE
// daemon.
bool LiesOn(const std::string& path, std::string_view device, bool* complete) {
  struct statx status = {};
  if (statx(ProcDirectory(), path.c_str(), AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &status) != 0) {
    if (IsRefusal(errno)) *complete = false;
    return false;
  }
  return fmt::format("{}:{}", status.stx_dev_major, status.stx_dev_minor) == device;
}

// /proc/PID/maps shows a device as two hexadecimal numbers.
std::string HexDevice(std::string_view device) {
  unsigned major = 0, minor = 0;
  if (std::sscanf(std::string(device).c_str(), "%u:%u", &major, &minor) != 2) return {};
  return fmt::format("{:02x}:{:02x}", major, minor);
}

class Looker {
 public:
  explicit Looker(std::string_view device) : device_(device), hex_device_(HexDevice(device)) {}

  // Returns the first use of the filesystem by the process that it finds; nullopt when there is none.
  std::optional<MountUser> LookAt(pid_t process) {
    const std::string directory = std::to_string(process);
    auto user = OpenFile(directory);
    constexpr std::pair<const char*, const char*> kLinks[] = {
        {"/cwd", "working directory"}, {"/root", "root directory"}, {"/exe", "running"}};
    for (const auto& [name, what] : kLinks) {
      if (!user.has_value() && LiesOn(directory + name, device_, &complete_)) user = Use(directory + name, what);
    }
    if (!user.has_value()) user = Mapping(directory);
    if (!user.has_value()) return std::nullopt;
    user->process = process;
    user->command = CommandOf(process);
    return user;
  }

  bool complete() const { return complete_; }

 private:
  static MountUser Use(const std::string& path, std::string_view what) {
    return {.reason = fmt::format("{} ({})", ReadProcLink(path), what)};
  }

  std::optional<MountUser> OpenFile(const std::string& process) {
    const std::string folder = process + "/fd/";
    const auto names = ListProc(folder);
    if (!names.has_value()) {
      if (IsRefusal(errno)) complete_ = false;
      return std::nullopt;
    }
    for (const std::string& name : *names) {
      if (LiesOn(folder + name, device_, &complete_)) return Use(folder + name, "open");
    }
    return std::nullopt;
  }

  std::optional<MountUser> Mapping(const std::string& process) {
    std::istringstream maps(ReadProcFile(process + "/maps").value_or(""));
    for (std::string line; std::getline(maps, line);) {
      std::istringstream fields(line);
      std::string range, access, offset, device, inode, path;
      fields >> range >> access >> offset >> device >> inode;
      if (device != hex_device_) continue;
      std::getline(fields >> std::ws, path);
      return MountUser{.reason = path + " (mapped)"};
    }
    return std::nullopt;
  }

  const std::string device_, hex_device_;
  bool complete_ = true;
};

}  // namespace

MountUsers FindMountUsers(const MountedFilesystem& filesystem) {
  MountUsers found;
  Looker looker(filesystem.device);
  for (const pid_t process : AllProcesses()) {
    if (process == getpid()) continue;
    if (auto user = looker.LookAt(process)) {
      user->reason = Printable(user->reason);
      found.users.push_back(std::move(*user));
    }
  }
  found.complete = looker.complete();
  if (!found.users.empty() && FindMountsElsewhere(filesystem).reused) return {};
  return found;
}

}  // namespace weightfs
