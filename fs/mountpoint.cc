// SPDX-License-Identifier: Apache-2.0
#include "fs/mountpoint.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/run_program.h"

namespace weightfs {
namespace {

constexpr const char* kFuseDevice = "/dev/fuse";
constexpr const char* kFuseConfiguration = "/etc/fuse.conf";
constexpr const char* kUnmountProgram = "fusermount3";

// True if `inner` is `outer` or is inside it. Both are absolute.
bool Holds(const std::string& outer, const std::string& inner) {
  return (inner + "/").starts_with(outer == "/" ? outer : outer + "/");
}

Result<void> CheckPrivileges(bool allow_other) {
  struct stat device = {};
  if (stat(kFuseDevice, &device) != 0)
    return Error{ErrorCode::kNotFound, fmt::format("{}: {}; load the kernel's FUSE with `modprobe fuse`, or give the "
                                                   "container this device",
                                                   kFuseDevice, std::strerror(errno))};
  if (geteuid() == 0) return {};
  if (FindProgram(kUnmountProgram).empty())
    return Error{ErrorCode::kNotFound,
                 "fusermount3 is not installed, which mounts for users other than root; install the package fuse3"};
  if (access(kFuseDevice, R_OK | W_OK) != 0) {
    const std::string why = std::strerror(errno);
    return Error{ErrorCode::kAccess, fmt::format("{}: {}; {}", kFuseDevice, why, FuseDeviceAdvice())};
  }
  if (!allow_other || UsersMayAllowOthers()) return {};
  return Error{ErrorCode::kPermission,
               fmt::format("allow_other needs root or a line `user_allow_other` in {}", kFuseConfiguration)};
}

constexpr int kNotFoundByShell = 127;

// Discards its message, because ours is more specific.
int RunFusermount(const std::string& directory, bool detach) {
  std::vector<std::string> words = {kUnmountProgram, "-u"};
  if (detach) words.emplace_back("-z");
  words.insert(words.end(), {"--", directory});
  const auto status = RunProgram(std::move(words));
  if (!status) return status.error().error_number();
  return *status == 0 ? 0 : *status == kNotFoundByShell ? ENOENT : EBUSY;
}

// The id of a connection is the minor number of its filesystem's device.
bool AbortConnection(const std::string& device) {
  const std::string number = device.substr(device.find(':') + 1);
  std::ofstream file("/sys/fs/fuse/connections/" + number + "/abort");
  file << "1" << std::flush;
  return file.good();
}

}  // namespace

std::string FindProgram(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream directories(path != nullptr ? path : "/usr/bin:/bin");
  for (std::string directory; std::getline(directories, directory, ':');) {
    const std::string program = directory + "/" + name;
    if (access(program.c_str(), X_OK) == 0) return program;
  }
  return {};
}

bool UsersMayAllowOthers() {
  std::ifstream lines(kFuseConfiguration);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    if (words >> word && word == "user_allow_other") return true;
  }
  return false;
}

Result<void> CheckApart(const std::string& mountpoint, const std::string& store) {
  // The daemon opens files of the store by path. A path through its own mount would deadlock.
  if (!Holds(mountpoint, store) && !Holds(store, mountpoint)) return {};
  return Error{ErrorCode::kInvalid, fmt::format("the mountpoint {} and the store {} must not lie in one another; mount "
                                                "elsewhere",
                                                mountpoint, store)};
}

Result<std::string> PrepareMountpoint(const std::string& mountpoint, bool allow_other) {
  struct stat status = {};
  if (stat(mountpoint.c_str(), &status) != 0) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kAccess;
    return Error{code, fmt::format("mountpoint {}: {}{}", mountpoint, std::strerror(errno),
                                   code == ErrorCode::kNotFound ? "; make the directory first" : "")};
  }
  if (!S_ISDIR(status.st_mode))
    return Error{ErrorCode::kNotDirectory, fmt::format("mountpoint {} is not a directory", mountpoint)};
  std::error_code failure;
  const std::string path = std::filesystem::canonical(mountpoint, failure).string();
  if (failure) return Error{ErrorCode::kAccess, fmt::format("mountpoint {}: {}", mountpoint, failure.message())};
  if (const auto mount = TopMountOn(path); mount.has_value() && IsWeightfs(*mount))
    return Error{ErrorCode::kBusy, fmt::format("{} is already the mount of {}", path, mount->source)};
  RETURN_IF_ERROR(CheckPrivileges(allow_other));
  return path;
}

std::string FuseDeviceAdvice() {
  struct stat device = {};
  if (stat(kFuseDevice, &device) != 0) return std::strerror(errno);
  const group* owners = getgrgid(device.st_gid);
  const passwd* user = getpwuid(geteuid());
  const unsigned mode = device.st_mode & 07777;
  std::string advice = fmt::format("its mode is {:04o} and its group {}, so this user may not mount. As root ", mode,
                                   owners != nullptr ? owners->gr_name : std::to_string(device.st_gid));
  if ((mode & 0060) == 0060 && device.st_gid != 0 && owners != nullptr && user != nullptr) {
    return advice + fmt::format("run: usermod -aG {} {} (and log in again)", owners->gr_name, user->pw_name);
  }
  return advice +
         "run: chmod 0666 /dev/fuse; to keep it so, put the line KERNEL==\"fuse\", MODE=\"0666\" into "
         "/etc/udev/rules.d/99-fuse.rules";
}

void RaiseReadAhead(const MountEntry& mount, ByteCount read_ahead) {
  if (read_ahead.value == 0) return;
  const std::string path = fmt::format("/sys/class/bdi/{}/read_ahead_kb", mount.device);
  std::ofstream file(path);
  file << read_ahead.value / kKiB << std::flush;
  if (file) {
    spdlog::debug("{}: read-ahead of mappings is {} KiB", path, read_ahead.value / kKiB);
  } else {
    spdlog::debug("{}: not raised to {} KiB ({}); mappings read ahead 128 KiB", path, read_ahead.value / kKiB,
                  std::strerror(errno));
  }
}

int UnmountDirectory(const std::string& directory, UnmountMode mode, const std::string& device) {
  const bool detach = mode != UnmountMode::kPlain;
  if (geteuid() != 0) {
    // fusermount3 cannot force, but the owner of a mount may abort its connection.
    if (mode == UnmountMode::kForce && !AbortConnection(device)) return EPERM;
    return RunFusermount(directory, detach);
  }
  // MNT_FORCE aborts the connection; MNT_DETACH removes a mount that programs still use.
  const int flags = mode == UnmountMode::kForce ? MNT_FORCE | MNT_DETACH : detach ? MNT_DETACH : 0;
  return umount2(directory.c_str(), UMOUNT_NOFOLLOW | flags) == 0 ? 0 : errno;
}

}  // namespace weightfs
