// SPDX-License-Identifier: Apache-2.0
#include "cli/mount_table.h"

#include <fmt/format.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>

#include "common/shell_quote.h"
#include "store/volume/store_directory.h"

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
    if (mount->directory == resolved) return *mount;
  }
  for (const MountEntry& mount : mounts) {
    if (ResolvePath(mount.source) == resolved) {
      return Error{ErrorCode::kNotFound, fmt::format("{}: this is the store; it is mounted on {}: weightfs umount {}",
                                                     path, mount.directory, ShellQuote(mount.directory))};
    }
  }
  return Error{ErrorCode::kNotFound, fmt::format("{}: no weightfs is mounted there; 'findmnt -t fuse.weightfs' lists "
                                                 "the mounts",
                                                 path)};
}

std::optional<MountEntry> FindMountOfStore(const std::string& directory) {
  const std::string path = ResolvePath(directory);
  const auto mounts = WeightfsMounts();
  if (!mounts.has_value()) return std::nullopt;
  for (auto mount = mounts->rbegin(); mount != mounts->rend(); ++mount) {
    if (ResolvePath(mount->source) == path) return *mount;
  }
  // Its daemon may know the store by another path.
  const std::string device = ReadStoreHolder(directory).device;
  for (auto mount = mounts->rbegin(); mount != mounts->rend(); ++mount) {
    if (mount->device == device) return *mount;
  }
  return std::nullopt;
}

Result<void> CheckIsNoMount(const std::string& path) {
  const auto mount = FindMount(path);
  if (!mount.has_value() || access((path + "/" + kDescriptionName).c_str(), F_OK) == 0) return {};
  return Error{ErrorCode::kInvalid,
               fmt::format("{}: this is the mount of the store {}; name the store, and unmount it before: weightfs "
                           "umount {}",
                           path, mount->source, ShellQuote(mount->directory))};
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

}  // namespace weightfs::cli
