// SPDX-License-Identifier: Apache-2.0
#include "remote/local_tree.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>

#include "common/hex.h"
#include "common/make_error.h"
#include "common/printable.h"
#include "common/processes.h"
#include "remote/beneath.h"

namespace weightfs::remote {
namespace {

// Later times become the last one that a manifest can have, in 2262.
int64_t Nanoseconds(const timespec& time) {
  int64_t since_epoch = 0;
  if (__builtin_mul_overflow(int64_t{time.tv_sec}, 1'000'000'000, &since_epoch) ||
      __builtin_add_overflow(since_epoch, int64_t{time.tv_nsec}, &since_epoch)) {
    return time.tv_sec < 0 ? INT64_MIN : INT64_MAX;
  }
  return since_epoch;
}

InodeState StateOf(std::string path, const struct stat& status) {
  return {.path = std::move(path),
          .device = status.st_dev,
          .inode = status.st_ino,
          .size = static_cast<uint64_t>(status.st_size),
          .modified_ns = Nanoseconds(status.st_mtim),
          .changed_ns = Nanoseconds(status.st_ctim)};
}

// Checks that a file of this kind can be in a bucket.
Result<void> CheckKind(mode_t mode, const std::string& path) {
  if (S_ISREG(mode) || S_ISDIR(mode)) return {};
  const std::string_view kind = S_ISFIFO(mode) ? "a FIFO" : S_ISSOCK(mode) ? "a socket" : "a device";
  return MakeError(ErrorCode::kInvalid, "{}: {}, which cannot be in a bucket", Printable(path), kind);
}

Error CannotOpen(const std::string& path, const Error& error) {
  return SystemError(path, "cannot be opened", error.error_number());
}

class Scanner {
 public:
  explicit Scanner(LocalTree* tree) : tree_(*tree) {}

  Result<void> ScanDirectory(const UniqueFd& opened, const std::string& path) {
    struct stat status {};
    if (fstat(opened.get(), &status) != 0) return SystemError(Shown(path), "cannot be examined");
    if (path.empty()) device_ = status.st_dev;
    ASSIGN_OR_RETURN(Attributes attributes, ReadAttributes(opened.get(), path));
    tree_.manifest.directories.push_back({.path = path,
                                          .mode = status.st_mode & 07777,
                                          .modified_ns = Nanoseconds(status.st_mtim),
                                          .attributes = std::move(attributes)});
    tree_.states.push_back(StateOf(path, status));
    ASSIGN_OR_RETURN(const auto names, ListNames(opened.get(), Shown(path)));
    for (const std::string& name : names) {
      RETURN_IF_ERROR(ScanEntry(opened.get(), name.c_str(), path.empty() ? name : path + "/" + name));
    }
    return {};
  }

  // Adds the file with this open descriptor.
  Result<void> AddFile(int file, const struct stat& status, const std::string& path) {
    ASSIGN_OR_RETURN(Attributes attributes, ReadAttributes(file, path));
    tree_.manifest.files.push_back({.path = path,
                                    .mode = status.st_mode & 07777,
                                    .size = static_cast<uint64_t>(status.st_size),
                                    .modified_ns = Nanoseconds(status.st_mtim),
                                    .attributes = std::move(attributes)});
    tree_.states.push_back(StateOf(path, status));
    return {};
  }

 private:
  std::string Shown(const std::string& path) const { return path.empty() ? tree_.root : tree_.root + "/" + path; }

  Result<void> ScanEntry(int directory, const char* name, const std::string& path) {
    if (auto checked = CheckPath(path); !checked.has_value()) {
      return Error{ErrorCode::kInvalid, Printable(tree_.root) + "/" + checked.error().what};
    }
    const UniqueFd found(openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (!found || fstat(found.get(), &status) != 0) return SystemError(Shown(path), "cannot be examined");
    if (S_ISLNK(status.st_mode)) return AddLink(found.get(), path);
    RETURN_IF_ERROR(CheckKind(status.st_mode, Shown(path)));
    if (status.st_dev != device_) {
      return Error{ErrorCode::kInvalid,
                   Printable(Shown(path)) + ": another filesystem is mounted here; push it by itself"};
    }
    auto opened = Reopen(found.get());
    if (!opened) return CannotOpen(Shown(path), opened.error());
    if (S_ISDIR(status.st_mode)) return ScanDirectory(*opened, path);
    // Once more, because network filesystems look for changes by others when a file is opened.
    if (fstat(opened->get(), &status) != 0) return SystemError(Shown(path), "cannot be examined");
    return AddFile(opened->get(), status, path);
  }

  Result<void> AddLink(int link, const std::string& path) {
    std::array<char, 4096> target;
    const ssize_t size = readlinkat(link, "", target.data(), target.size());
    if (size < 0) return SystemError(Shown(path), "cannot be read");
    std::string text(target.data(), static_cast<size_t>(size));
    if (!IsUtf8(text)) return Error{ErrorCode::kInvalid, Printable(Shown(path)) + ": the link's target is not UTF-8"};
    tree_.manifest.links.push_back({.path = path, .target = std::move(text)});
    return {};
  }

  Result<Attributes> ReadAttributes(int file, const std::string& path) const {
    Attributes attributes;
    std::string names(65536, '\0');
    const ssize_t size = flistxattr(file, names.data(), names.size());
    if (size < 0 && errno == ENOTSUP) return attributes;
    if (size < 0) return SystemError(Shown(path), "its attributes cannot be listed");
    size_t bytes = 0;
    for (const char* name = names.data(); name < names.data() + size; name += std::string_view(name).size() + 1) {
      if (!std::string_view(name).starts_with("user.")) continue;
      if (!IsUtf8(name)) {
        return Error{ErrorCode::kInvalid, Printable(Shown(path)) + ": the name of an extended attribute is not UTF-8"};
      }
      std::string value(65536, '\0');
      const ssize_t length = fgetxattr(file, name, value.data(), value.size());
      if (length < 0) return SystemError(Shown(path), "an attribute cannot be read");
      value.resize(static_cast<size_t>(length));
      bytes += std::string_view(name).size() + value.size();
      if (bytes > kMaximumAttributes) {
        return MakeError(ErrorCode::kTooLarge, "{}: has more than {} MiB of extended attributes: remove some",
                         Printable(Shown(path)), kMaximumAttributes >> 20);
      }
      attributes[name] = std::move(value);
    }
    return attributes;
  }

  LocalTree& tree_;
  uint64_t device_ = 0;
};

}  // namespace

int64_t LocalTree::newest_ns() const {
  int64_t newest = 0;
  for (const InodeState& state : states) newest = std::max(newest, state.modified_ns);
  return newest;
}

std::string LocalTree::Fingerprint() const {
  std::string text = root;
  for (const InodeState& state : states) {
    text += fmt::format("\n{}:{} {} {} {} {}", state.path.size(), state.path, state.inode, state.size,
                        state.modified_ns, state.changed_ns);
  }
  for (const LinkEntry& link : manifest.links)
    text += fmt::format("\n{}:{} {}", link.path.size(), link.path, link.target);
  return ToHex(Sha256Of(text)).substr(0, 32);
}

Result<UniqueFd> LocalTree::Open(const FileEntry& file, bool direct) const {
  const auto listed = std::ranges::lower_bound(states, file.path, {}, &InodeState::path);
  const auto found = is_file ? Reopen(source) : OpenBeneath(source, file.path);
  constexpr std::array kReplaced = {ErrorCode::kNotFound, ErrorCode::kNotDirectory};
  const bool replaced = !found && std::ranges::find(kReplaced, found.error().code) != kReplaced.end();
  if (!found && !replaced) return CannotOpen(PathOf(file), found.error());
  struct stat status {};
  if (replaced || fstat(found->get(), &status) != 0 || !S_ISREG(status.st_mode)) return ChangedDuringPush(PathOf(file));
  auto opened = Reopen(found->get(), direct);
  if (!opened) return CannotOpen(PathOf(file), opened.error());
  if (fstat(opened->get(), &status) != 0 || StateOf(file.path, status) != *listed) {
    return ChangedDuringPush(PathOf(file));
  }
  return opened;
}

Error ChangedDuringPush(const std::string& path) {
  return {ErrorCode::kStale,
          Printable(path) + ": changed during the push, so no version was made; publish the directory first"};
}

Result<UniqueFd> OpenSource(const std::string& path) {
  const auto found = OpenPath(path);
  if (!found) return found.error().what.empty() ? CannotOpen(path, found.error()) : found.error();
  struct stat status {};
  if (fstat(found->get(), &status) != 0) return SystemError(path, "cannot be examined");
  RETURN_IF_ERROR(CheckKind(status.st_mode, path));
  auto opened = Reopen(found->get());
  if (!opened) return CannotOpen(path, opened.error());
  return opened;
}

Result<LocalTree> ScanTree(int source) {
  LocalTree tree;
  tree.source = source;
  tree.root = ReadProcLink(fmt::format("self/fd/{}", source));
  if (tree.root.empty()) return SystemError(fmt::format("/proc/self/fd/{}", source), "cannot be resolved");
  struct stat status {};
  if (fstat(source, &status) != 0) return SystemError(tree.root, "cannot be examined");
  Scanner scanner(&tree);
  tree.is_file = S_ISREG(status.st_mode);
  if (tree.is_file) {
    const size_t slash = tree.root.rfind('/');
    const std::string name = tree.root.substr(slash + 1);
    RETURN_IF_ERROR(CheckPath(name));
    tree.root.resize(slash);
    tree.manifest.directories.push_back({});
    RETURN_IF_ERROR(scanner.AddFile(source, status, name));
  } else {
    auto opened = Reopen(source);
    if (!opened) return CannotOpen(tree.root, opened.error());
    RETURN_IF_ERROR(scanner.ScanDirectory(*opened, ""));
  }
  std::ranges::sort(tree.manifest.directories, {}, &DirectoryEntry::path);
  std::ranges::sort(tree.manifest.files, {}, &FileEntry::path);
  std::ranges::sort(tree.manifest.links, {}, &LinkEntry::path);
  std::ranges::sort(tree.states, {}, &InodeState::path);
  tree.manifest.NumberBlocks();
  return tree;
}

}  // namespace weightfs::remote
