// SPDX-License-Identifier: Apache-2.0
#include "common/mounts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <libmount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "common/printable.h"
#include "common/processes.h"

namespace weightfs {
namespace {

constexpr std::string_view kTypes[] = {"fuse.weightfs", "fuseblk.weightfs"};
constexpr const char* kOwnTable = "self/mountinfo";

struct TableEnd {
  void operator()(libmnt_table* table) const { mnt_unref_table(table); }
};
struct IteratorEnd {
  void operator()(libmnt_iter* iterator) const { mnt_free_iter(iterator); }
};

std::string Text(const char* text) { return text == nullptr ? std::string() : text; }

// Removes the other mounts. Sets `reused` if one of them has the filesystem's device number.
void KeepMountsOf(const MountedFilesystem& filesystem, std::vector<MountEntry>* mounts, bool* reused) {
  std::erase_if(*mounts, [&](const MountEntry& mount) {
    if (filesystem.Has(mount)) return false;
    *reused = *reused || mount.device == filesystem.device;
    return true;
  });
}

// Thousands of processes share a few mount tables. Each table is read once per namespace and root directory, if these
// are readable, and decoded only if it contains the device's number.
class Search {
 public:
  explicit Search(const MountedFilesystem& filesystem)
      : filesystem_(filesystem), needle_(fmt::format(" {} ", filesystem.device)) {
    auto mounts = ReadMounts().value_or(std::vector<MountEntry>());
    KeepMountsOf(filesystem_, &mounts, &reused_);
    for (const MountEntry& mount : mounts) own_.insert(mount.id);
    const std::string own = TableKey("self");
    if (!own.empty()) tables_[own] = {};
  }

  void Visit(pid_t process) {
    const std::string directory = std::to_string(process);
    if (IsKernelThread(directory)) return;
    const std::string key = TableKey(directory);
    auto known = key.empty() ? tables_.end() : tables_.find(key);
    Ids ids;
    if (known == tables_.end()) {
      ids = Read(directory);
      if (!key.empty()) tables_[key] = ids;
    } else {
      ids = known->second;
    }
    if (!ids.empty()) found_[ids].processes.push_back(process);
  }

  MountsElsewhere Result() {
    MountsElsewhere result;
    result.complete = complete_;
    result.reused = reused_;
    for (auto& [ids, mounts] : found_) {
      std::sort(mounts.processes.begin(), mounts.processes.end());
      result.namespaces.push_back(std::move(mounts));
    }
    return result;
  }

 private:
  using Ids = std::vector<int>;

  // Kernel threads share the first namespace and keep nothing mounted.
  static bool IsKernelThread(const std::string& process) {
    return ReadProcLink(process + "/exe").empty() && errno == ENOENT;
  }

  // Returns an empty key when this user may not inspect the process.
  static std::string TableKey(const std::string& process) {
    const std::string space = ReadProcLink(process + "/ns/mnt"), root = ReadProcLink(process + "/root");
    return space.empty() || root.empty() ? std::string() : space + " " + root;
  }

  // The ids of the mounts in a table, except those that this process also sees.
  Ids Read(const std::string& process) {
    const auto text = ReadProcFile(process + "/mountinfo");
    if (!text.has_value()) {
      if (errno == EACCES || errno == EPERM) complete_ = false;
      return {};
    }
    if (text->find(needle_) == std::string::npos) return {};
    auto mounts = ParseMounts(*text).value_or(std::vector<MountEntry>());
    KeepMountsOf(filesystem_, &mounts, &reused_);
    std::erase_if(mounts, [this](const MountEntry& mount) { return own_.contains(mount.id); });
    Ids ids;
    for (const MountEntry& mount : mounts) ids.push_back(mount.id);
    if (!ids.empty()) found_[ids].mounts = std::move(mounts);
    return ids;
  }

  const MountedFilesystem filesystem_;
  const std::string needle_;
  std::set<int> own_;
  std::map<std::string, Ids> tables_;
  std::map<Ids, NamespaceMounts> found_;
  bool complete_ = true, reused_ = false;
};

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

bool MountedFilesystem::Has(const MountEntry& mount) const {
  return mount.device == device && (source.empty() || mount.source == source);
}

bool IsWeightfs(const MountEntry& mount) {
  return std::find(std::begin(kTypes), std::end(kTypes), mount.type) != std::end(kTypes);
}

bool HasOption(std::string_view list, std::string_view option) {
  return fmt::format(",{},", list).find(fmt::format(",{},", option)) != std::string::npos;
}

Result<std::vector<MountEntry>> ParseMounts(const std::string& text) {
  std::vector<MountEntry> mounts;
  if (text.empty()) return mounts;
  const Error failed{ErrorCode::kNoMemory, "the table of mounts cannot be decoded: out of memory"};
  const std::unique_ptr<libmnt_table, TableEnd> table(mnt_new_table());
  const std::unique_ptr<libmnt_iter, IteratorEnd> iterator(mnt_new_iter(MNT_ITER_FORWARD));
  // The text outlives the stream, which only reads it.
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(
      fmemopen(const_cast<char*>(text.data()), text.size(), "r"), std::fclose);
  if (table == nullptr || iterator == nullptr || stream == nullptr) return failed;
  // A positive result skips a line that cannot be decoded.
  mnt_table_set_parser_errcb(table.get(), [](libmnt_table*, const char*, int) { return 1; });
  if (mnt_table_parse_stream(table.get(), stream.get(), kOwnTable) != 0) return failed;
  libmnt_fs* fs = nullptr;
  while (mnt_table_next_fs(table.get(), iterator.get(), &fs) == 0) {
    const dev_t device = mnt_fs_get_devno(fs);
    mounts.push_back({.id = mnt_fs_get_id(fs),
                      .device = fmt::format("{}:{}", major(device), minor(device)),
                      .root = Text(mnt_fs_get_root(fs)),
                      .directory = Text(mnt_fs_get_target(fs)),
                      .type = Text(mnt_fs_get_fstype(fs)),
                      .source = Text(mnt_fs_get_source(fs)),
                      .flags = Text(mnt_fs_get_vfs_options(fs)),
                      .options = Text(mnt_fs_get_fs_options(fs))});
  }
  return mounts;
}

Result<std::vector<MountEntry>> ReadMounts() {
  const auto text = ReadProcFile(kOwnTable);
  if (text.has_value()) return ParseMounts(*text);
  return Error{ErrorCode::kIo, fmt::format("/proc/{} cannot be read; is /proc mounted?", kOwnTable)};
}

std::optional<MountEntry> TopMountOn(const std::string& path) {
  const auto mounts = ReadMounts();
  if (!mounts.has_value()) return std::nullopt;
  // A later line is mounted on top of an earlier one.
  const auto top =
      std::find_if(mounts->rbegin(), mounts->rend(), [&](const MountEntry& mount) { return mount.directory == path; });
  return top == mounts->rend() ? std::nullopt : std::optional(*top);
}

std::vector<MountEntry> MountsOf(const MountedFilesystem& filesystem) {
  auto mounts = ReadMounts().value_or(std::vector<MountEntry>());
  std::erase_if(mounts, [&](const MountEntry& mount) { return !filesystem.Has(mount); });
  return mounts;
}

MountsElsewhere FindMountsElsewhere(const MountedFilesystem& filesystem) {
  Search search(filesystem);
  for (const pid_t process : AllProcesses()) search.Visit(process);
  return search.Result();
}

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
