#include "fs/mountpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/log.h"

extern char** environ;

namespace weightfs {
namespace {

constexpr const char* kFuseDevice = "/dev/fuse";
constexpr const char* kFuseConfiguration = "/etc/fuse.conf";
constexpr const char* kUnmountProgram = "fusermount3";

// The kernel writes blanks and backslashes in paths as three octal digits.
std::string Unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '\\' && i + 3 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '3';
    if (!escape) {
      out.push_back(text[i]);
      continue;
    }
    out.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0')));
    i += 3;
  }
  return out;
}

std::string ReadText(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs a program and waits; its exit status, or -1.
int RunProgram(std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t child = 0;
  if (posix_spawnp(&child, pointers[0], nullptr, nullptr, pointers.data(), environ) != 0) return -1;
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool InPath(const char* program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

// True when `inner` is `outer` or lies in it; both absolute.
bool Holds(const std::string& outer, const std::string& inner) {
  return inner == outer || outer == "/" ||
         (inner.size() > outer.size() && inner.compare(0, outer.size(), outer) == 0 && inner[outer.size()] == '/');
}

// Whether a FUSE mount without its program lies there. Only opening tells: attributes the kernel has from before.
bool IsDead(const std::string& mountpoint) {
  const int directory = open(mountpoint.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return errno == ENOTCONN;
  close(directory);
  return false;
}

// A daemon that was killed leaves a mount on which every call that reaches the kernel's FUSE says ENOTCONN.
Result<void> RemoveDeadMount(const std::string& mountpoint) {
  std::error_code ignored;
  const std::string parent = std::filesystem::canonical(std::filesystem::absolute(mountpoint).parent_path(), ignored);
  const std::string path = parent + "/" + std::filesystem::path(mountpoint).filename().string();
  const std::optional<MountEntry> mount = FindMount(path);
  if (mount.has_value() && mount->type == kMountType && DetachMount(path)) {
    spdlog::warn("{}: took away the mount of {} that a killed weightfs had left", path, mount->source);
    return {};
  }
  return Error{ErrorCode::kBusy, fmt::format("{} is the mount of a filesystem whose program has ended; unmount it "
                                             "with `fusermount3 -u {}` first", mountpoint, mountpoint)};
}

Result<void> CheckPrivileges(bool allow_other) {
  struct stat device {};
  if (stat(kFuseDevice, &device) != 0)
    return Error{ErrorCode::kNotFound, fmt::format("{}: {}; load the kernel's FUSE with `modprobe fuse`, or give the "
                                                   "container this device", kFuseDevice, std::strerror(errno))};
  if (geteuid() == 0) return {};
  if (!InPath(kUnmountProgram))
    return Error{ErrorCode::kNotFound,
                 "fusermount3 is not installed, which mounts for users other than root; install the package fuse3"};
  if (access(kFuseDevice, R_OK | W_OK) != 0)
    return Error{ErrorCode::kAccess, fmt::format("{}: {}; this user may not mount FUSE filesystems", kFuseDevice,
                                                 std::strerror(errno))};
  if (!allow_other) return {};
  std::istringstream lines(ReadText(kFuseConfiguration));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find_first_not_of(" \t");
    if (first != std::string::npos && line.compare(first, 16, "user_allow_other") == 0) return {};
  }
  return Error{ErrorCode::kPermission, fmt::format("allow_other needs root or a line `user_allow_other` in {}",
                                                   kFuseConfiguration)};
}

}  // namespace

std::vector<MountEntry> ParseMountInfo(std::string_view text) {
  std::vector<MountEntry> entries;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    // "36 35 98:0 /root /mountpoint options tags… - type source options"
    std::istringstream words(line);
    std::string id, parent, root, options, tag;
    MountEntry entry;
    words >> id >> parent >> entry.device >> root >> entry.mountpoint >> options;
    while (words >> tag && tag != "-") {}
    if (!(words >> entry.type >> entry.source)) continue;
    entry.mountpoint = Unescape(entry.mountpoint);
    entry.source = Unescape(entry.source);
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::optional<MountEntry> FindMount(const std::string& mountpoint) {
  std::optional<MountEntry> found;   // a later line is mounted over an earlier one
  for (MountEntry& entry : ParseMountInfo(ReadText("/proc/self/mountinfo"))) {
    if (entry.mountpoint == mountpoint) found = std::move(entry);
  }
  return found;
}

Result<std::string> PrepareMountpoint(const std::string& mountpoint, const std::string& store_directory,
                                      bool allow_other) {
  struct stat status {};
  if (IsDead(mountpoint)) RETURN_IF_ERROR(RemoveDeadMount(mountpoint));
  if (stat(mountpoint.c_str(), &status) != 0) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kAccess;
    return Error{code, fmt::format("mountpoint {}: {}{}", mountpoint, std::strerror(errno),
                                   code == ErrorCode::kNotFound ? "; make the directory first" : "")};
  }
  if (!S_ISDIR(status.st_mode))
    return Error{ErrorCode::kNotDirectory, fmt::format("mountpoint {} is not a directory", mountpoint)};
  std::error_code failure;
  const std::string path = std::filesystem::canonical(mountpoint, failure).string();
  if (failure)
    return Error{ErrorCode::kAccess, fmt::format("mountpoint {}: {}", mountpoint, failure.message())};
  if (const auto mount = FindMount(path); mount.has_value() && mount->type == kMountType)
    return Error{ErrorCode::kBusy, fmt::format("{} is already the mount of {}", path, mount->source)};
  if (!store_directory.empty()) {
    const std::string store = std::filesystem::weakly_canonical(store_directory, failure).string();
    // The daemon opens files of the store by name; through its own mount it would wait for itself.
    if (!failure && (Holds(path, store) || Holds(store, path)))
      return Error{ErrorCode::kInvalid, fmt::format("the mountpoint {} and the store {} must not lie in one another",
                                                    path, store)};
  }
  RETURN_IF_ERROR(CheckPrivileges(allow_other));
  return path;
}

bool DetachMount(const std::string& mountpoint) {
  if (umount2(mountpoint.c_str(), MNT_DETACH) == 0) return true;
  return geteuid() != 0 && RunProgram({kUnmountProgram, "-u", "-q", "-z", "--", mountpoint}) == 0;
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

}  // namespace weightfs
