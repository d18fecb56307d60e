// SPDX-License-Identifier: Apache-2.0
#include "remote/remove_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>

#include "common/unique_fd.h"

namespace weightfs::remote {
namespace {

void RemoveBelow(int parent, const std::string& name, dev_t device) {
  if (unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return;
  struct stat status {};
  if (fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || status.st_dev != device) return;
  // A directory that has its final mode may not be readable or writable.
  fchmodat(parent, name.c_str(), 0700, AT_SYMLINK_NOFOLLOW);
  const UniqueFd directory(openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory || fstat(directory.get(), &status) != 0 || status.st_dev != device) return;
  if (const auto names = ListNames(directory.get(), name)) {
    for (const std::string& below : *names) RemoveBelow(directory.get(), below, device);
  }
  unlinkat(parent, name.c_str(), AT_REMOVEDIR);
}

}  // namespace

Result<std::vector<std::string>> ListNames(int directory, const std::string& path) {
  UniqueFd copy(openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!copy) return SystemError(path, "cannot open the directory");
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(fdopendir(copy.get()), closedir);
  if (stream == nullptr) return SystemError(path, "cannot read the directory");
  copy.Release();
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(stream.get());
    if (entry == nullptr && errno != 0) return SystemError(path, "cannot read the directory");
    if (entry == nullptr) return names;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
}

void RemoveTree(int parent, const std::string& name) {
  struct stat status {};
  if (fstat(parent, &status) == 0) RemoveBelow(parent, name, status.st_dev);
}

}  // namespace weightfs::remote
