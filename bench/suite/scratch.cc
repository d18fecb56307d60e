// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/scratch.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "bench/suite/process.h"
#include "common/guarded_directory.h"

namespace weightfs::bench {
namespace {

namespace fs = std::filesystem;

Result<void> DeleteTree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (!error) return {};
  return Error{ErrorCode::kIo, fmt::format("{}: cannot be deleted: {}", path, error.message())};
}

Result<void> MakeEmpty(const std::string& path) {
  if (mkdir(path.c_str(), 0755) != 0) return SystemError(path, "cannot be made");
  return {};
}

}  // namespace

Result<pid_t> DaemonOf(const std::string& store) {
  ASSIGN_OR_RETURN(const GuardedDirectory directory, GuardedDirectory::Open(store));
  ASSIGN_OR_RETURN(const std::string note, directory.ReadFile("lock", 32));
  const auto pid = static_cast<pid_t>(std::strtol(note.c_str(), nullptr, 10));
  if (pid > 0 && CpuSecondsOf(pid) >= 0 && fs::exists(fmt::format("/proc/{}", pid))) return pid;
  return Error{ErrorCode::kNotFound, fmt::format("{}: no process serves this store here", store)};
}

Scratch::Scratch(Options options) : options_(std::move(options)) {
  // Without one the benchmark still cleans up where it can.
  if (auto keeper = Keeper::Start(options_.program); keeper.has_value()) keeper_ = std::move(*keeper);
}

Scratch::~Scratch() { (void)Close(); }

Result<std::string> Scratch::MakeDirectory(const std::string& parent, const std::string& name) {
  std::string path = fmt::format("{}/{}-{}", parent, name, getpid());
  RETURN_IF_ERROR(MakeEmpty(path));
  keeper_.Note(Kept::kDirectory, path);
  directories_.push_back(path);
  return path;
}

Result<Place> Scratch::Mount(const Store& store) {
  const std::string pool = store.directory + "/store", mount = store.directory + "/mount";
  RETURN_IF_ERROR(MakeEmpty(store.directory));
  RETURN_IF_ERROR(MakeEmpty(mount));
  Command format{{options_.program, "format", pool}, {}, options_.cancel};
  for (const auto& device : store.devices) format.words.insert(format.words.end(), {"--device", device});
  if (store.devices.empty()) format.words.insert(format.words.end(), {"--size", fmt::format("{}", store.size)});
  RETURN_IF_ERROR(RunCommand(format));
  // From here on there may be a mount, also when the command fails or is interrupted.
  mounts_[mount] = store.directory;
  keeper_.Note(Kept::kMount, mount);
  Command command{{options_.program, "mount", pool, mount}, store.cgroup, options_.cancel};
  if (!store.mount_options.empty()) command.words.insert(command.words.end(), {"-o", store.mount_options});
  RETURN_IF_ERROR(RunCommand(command));
  ASSIGN_OR_RETURN(const pid_t daemon, DaemonOf(pool));
  return Place::Open({mount, daemon, options_.drop_caches});
}

Result<double> Scratch::Remount(const std::string& directory, const std::string& mount_options, Place* place) {
  const std::string pool = directory + "/store", mount = directory + "/mount";
  RETURN_IF_ERROR(Detach(mount, directory));
  Command command{{options_.program, "mount", pool, mount}, {}, options_.cancel};
  if (!mount_options.empty()) command.words.insert(command.words.end(), {"-o", mount_options});
  const double begin = Now();
  RETURN_IF_ERROR(RunCommand(command));
  const double seconds = Now() - begin;
  ASSIGN_OR_RETURN(const pid_t daemon, DaemonOf(pool));
  ASSIGN_OR_RETURN(*place, Place::Open({mount, daemon, options_.drop_caches}));
  return seconds;
}

Result<void> Scratch::Detach(const std::string& mount, const std::string& directory) {
  // Never cancelled: this is the cleaning up. A mount that never came to be is no failure.
  struct stat at {
  }, above{};
  const bool looked = stat(mount.c_str(), &at) == 0 && stat(directory.c_str(), &above) == 0;
  if (looked && at.st_dev == above.st_dev) return {};
  RETURN_IF_ERROR(RunCommand({{options_.program, "umount", mount}, {}, nullptr}));
  return {};
}

Result<void> Scratch::Unmount(const std::string& mount) {
  const auto found = mounts_.find(mount);
  if (found == mounts_.end()) return {};
  const std::string directory = found->second;
  RETURN_IF_ERROR(Detach(mount, directory));
  mounts_.erase(mount);
  keeper_.Forget(Kept::kMount, mount);
  return DeleteTree(directory);
}

Result<void> Scratch::UnmountAll() {
  Result<void> result;
  for (const auto& [mount, directory] : std::map(mounts_)) {
    if (auto done = Unmount(mount); !done.has_value() && result.has_value()) result = std::move(done);
  }
  return result;
}

Result<void> Scratch::Delete(const std::string& directory) {
  RETURN_IF_ERROR(DeleteTree(directory));
  keeper_.Forget(Kept::kDirectory, directory);
  return {};
}

Result<void> Scratch::Close() {
  // What is still mounted must not be deleted through the mount.
  RETURN_IF_ERROR(UnmountAll());
  Result<void> result;
  for (; !directories_.empty(); directories_.pop_back()) {
    if (auto done = Delete(directories_.back()); !done.has_value() && result.has_value()) result = std::move(done);
  }
  return result;
}

}  // namespace weightfs::bench
