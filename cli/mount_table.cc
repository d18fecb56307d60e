#include "cli/mount_table.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/printable.h"

namespace weightfs::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTypes[] = {"fuse.weightfs", "fuseblk.weightfs"};

// mountinfo writes space, tab, newline and backslash as \ooo.
std::string Unescape(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    unsigned value = 0;
    if (text[at] == '\\' && at + 3 < text.size() &&
        std::from_chars(text.data() + at + 1, text.data() + at + 4, value, 8).ptr == text.data() + at + 4) {
      out.push_back(static_cast<char>(value));
      at += 3;
    } else {
      out.push_back(text[at]);
    }
  }
  return out;
}

std::string ReadLink(const fs::path& path) {
  char target[PATH_MAX];
  const ssize_t size = readlink(path.c_str(), target, sizeof(target));
  return size > 0 ? std::string(target, static_cast<size_t>(size)) : std::string();
}

bool IsInside(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
}

// /proc/PID/maps shows devices as two hexadecimal numbers.
std::string HexDevice(const std::string& device) {
  unsigned major = 0, minor = 0;
  if (std::sscanf(device.c_str(), "%u:%u", &major, &minor) != 2) return {};
  return fmt::format("{:02x}:{:02x}", major, minor);
}

std::string MappedFile(const fs::path& process, const std::string& hex_device) {
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::string range, access, offset, device, inode, path;
    fields >> range >> access >> offset >> device >> inode;
    if (device != hex_device) continue;
    std::getline(fields >> std::ws, path);
    return path;
  }
  return {};
}

std::string OpenFile(const fs::path& process, const std::string& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(process / "fd", error), end; !error && entry != end; entry.increment(error)) {
    if (std::string target = ReadLink(entry->path()); IsInside(target, directory)) return target;
  }
  return {};
}

// Why the process keeps the mount busy; empty when it does not.
std::string ReasonOf(const fs::path& process, const MountEntry& mount, const std::string& hex_device) {
  if (std::string file = OpenFile(process, mount.directory); !file.empty()) return file + " (open)";
  if (std::string path = ReadLink(process / "cwd"); IsInside(path, mount.directory)) {
    return path + " (working directory)";
  }
  if (std::string path = ReadLink(process / "root"); IsInside(path, mount.directory)) {
    return path + " (root directory)";
  }
  if (std::string path = ReadLink(process / "exe"); IsInside(path, mount.directory)) return path + " (running)";
  if (std::string path = MappedFile(process, hex_device); !path.empty()) return path + " (mapped)";
  return {};
}

}  // namespace

std::optional<MountEntry> ParseMountInfo(std::string_view line) {
  // ID PARENT MAJOR:MINOR ROOT DIRECTORY OPTIONS [TAG...] - TYPE SOURCE SUPER_OPTIONS
  const size_t dash = line.find(" - ");
  if (dash == std::string_view::npos) return std::nullopt;
  std::istringstream head{std::string(line.substr(0, dash))}, tail{std::string(line.substr(dash + 3))};
  std::string id, parent, device, root, directory, type, source, options;
  if (!(head >> id >> parent >> device >> root >> directory)) return std::nullopt;
  if (!(tail >> type >> source >> options)) return std::nullopt;
  if (std::find(std::begin(kTypes), std::end(kTypes), type) == std::end(kTypes)) return std::nullopt;
  return MountEntry{Unescape(source), Unescape(directory), device, options};
}

Result<std::vector<MountEntry>> WeightfsMounts() {
  std::ifstream file("/proc/self/mountinfo");
  if (!file) return Error{ErrorCode::kIo, "/proc/self/mountinfo cannot be read; is /proc mounted?"};
  std::vector<MountEntry> mounts;
  for (std::string line; std::getline(file, line);) {
    if (auto entry = ParseMountInfo(line)) mounts.push_back(std::move(*entry));
  }
  return mounts;
}

Result<MountEntry> FindMount(const std::string& directory) {
  const std::string path = ResolvePath(directory);
  ASSIGN_OR_RETURN(const auto mounts, WeightfsMounts());
  for (auto mount = mounts.rbegin(); mount != mounts.rend(); ++mount) {
    if (mount->directory == path) return *mount;
  }
  for (const MountEntry& mount : mounts) {
    if (ResolvePath(mount.store) == path) {
      return Error{ErrorCode::kNotFound, fmt::format("{}: this is the store; it is mounted on {}: unmount that",
                                                     directory, mount.directory)};
    }
  }
  return Error{ErrorCode::kNotFound, fmt::format("{}: no weightfs is mounted there; 'findmnt -t fuse.weightfs' lists "
                                                 "the mounts",
                                                 directory)};
}

std::optional<MountEntry> FindMountOfStore(const std::string& directory) {
  const std::string path = ResolvePath(directory);
  const auto mounts = WeightfsMounts();
  if (!mounts.has_value()) return std::nullopt;
  for (auto mount = mounts->rbegin(); mount != mounts->rend(); ++mount) {
    if (ResolvePath(mount->store) == path) return *mount;
  }
  return std::nullopt;
}

std::string ResolvePath(const std::string& path) {
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) != nullptr) return resolved;
  // The last component may be a mount whose process is gone (ENOTCONN): what leads to it can still be resolved.
  fs::path whole = fs::absolute(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  if (realpath(whole.parent_path().c_str(), resolved) != nullptr) {
    return (fs::path(resolved) / whole.filename()).string();
  }
  return whole.string();
}

std::vector<MountUser> FindMountUsers(const MountEntry& mount) {
  std::vector<MountUser> users;
  const std::string hex_device = HexDevice(mount.device);
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ptr != name.data() + name.size()) continue;
    if (pid == getpid()) continue;
    std::string reason = ReasonOf(entry->path(), mount, hex_device);
    if (reason.empty()) continue;
    std::string command;
    std::ifstream comm(entry->path() / "comm");
    std::getline(comm, command);
    users.push_back({pid, Printable(command), Printable(reason)});
  }
  return users;
}

}  // namespace weightfs::cli
