// SPDX-License-Identifier: Apache-2.0
#include "client/open/replacement.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

namespace weightfs::client {
namespace {

constexpr int kMostLinks = 40;  // same as the kernel's limit

Error Failed(const std::string& path, int error_number) {
  return {ErrorCode{error_number}, fmt::format("cannot follow {}: {}", path, std::strerror(error_number)), path};
}

// True if fs.protected_symlinks is set, or cannot be read.
bool LinksAreProtected() {
  std::ifstream file("/proc/sys/fs/protected_symlinks");
  int value = 1;
  file >> value;
  return !file || value != 0;
}

// The kernel's rule for the last link of a path (proc(5), protected_symlinks).
bool MayFollow(const struct stat& folder, const struct stat& link) {
  constexpr mode_t kSharedByAll = S_ISVTX | S_IWOTH;
  if (link.st_uid == geteuid() || link.st_uid == folder.st_uid) return true;
  return (folder.st_mode & kSharedByAll) != kSharedByAll || !LinksAreProtected();
}

}  // namespace

Result<std::string> FinalPath(const std::string& path) {
  std::filesystem::path at = path;
  for (int links = 0; links <= kMostLinks; ++links) {
    const std::filesystem::path parent = at.has_parent_path() ? at.parent_path() : ".";
    const std::string name = at.filename();
    if (name.empty() || name == "." || name == "..") return at.string();  // a directory, not a link
    // Open descriptors of the directory and the link guarantee that the checked link is the one that is followed, even
    // if other processes rename files meanwhile.
    const UniqueFd folder(open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder) return Failed(path, errno);
    const UniqueFd link(openat(folder.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!link && errno == ENOENT) return at.string();
    if (!link) return Failed(path, errno);
    struct stat of_folder {
    }, of_link{};
    if (fstat(folder.get(), &of_folder) != 0 || fstat(link.get(), &of_link) != 0) return Failed(path, errno);
    if (!S_ISLNK(of_link.st_mode)) return at.string();
    if (!MayFollow(of_folder, of_link)) return Failed(path, EACCES);
    std::array<char, PATH_MAX> target;
    const ssize_t size = readlinkat(link.get(), "", target.data(), target.size());
    if (size < 0) return Failed(path, errno);
    if (static_cast<size_t>(size) == target.size()) return Failed(path, ENAMETOOLONG);
    at = at.parent_path() / std::string(target.data(), static_cast<size_t>(size));
  }
  return Failed(path, ELOOP);
}

bool TakeOver(int descriptor, const struct stat& old) {
  // Two calls, because a process may often set the group but not the owner. Before the mode is set, because each call
  // clears the set-user-ID and set-group-ID bits.
  constexpr auto kSame = static_cast<uid_t>(-1);
  [[maybe_unused]] const int owner = fchown(descriptor, old.st_uid, kSame);
  [[maybe_unused]] const int group = fchown(descriptor, kSame, old.st_gid);
  struct stat now {};
  if (fstat(descriptor, &now) != 0) return false;
  mode_t mode = old.st_mode & 07777;
  if (now.st_uid != old.st_uid) mode &= ~static_cast<mode_t>(S_ISUID);
  if (now.st_gid != old.st_gid) mode &= ~static_cast<mode_t>(S_ISGID);
  return fchmod(descriptor, mode) == 0;
}

std::string TemporaryName(const std::string& start) { return start + ".weightfs-" + std::string(6, 'X'); }

UniqueFd CreateTemporaryFile(const std::string& start, mode_t mode, std::string* path) {
  std::random_device random;
  for (;;) {
    *path = fmt::format("{}.weightfs-{:08x}", start, random());
    UniqueFd file(open(path->c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (file || errno != EEXIST) return file;
  }
}

}  // namespace weightfs::client
