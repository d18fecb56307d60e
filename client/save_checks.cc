// SPDX-License-Identifier: Apache-2.0
#include "client/save_checks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "client/file_limit.h"
#include "common/result.h"
#include "common/units.h"
#include "lease/protocol.h"

namespace weightfs::client {
namespace {

constexpr size_t kLongestName = 255;

bool HasCapability(unsigned capability) {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
  if (syscall(SYS_capget, &header, sets.data()) != 0) return false;
  return (sets[CAP_TO_INDEX(capability)].effective & CAP_TO_MASK(capability)) != 0;
}

// Returns an errno, or 0 if the file may be replaced.
int WhyNotReplaceable(const struct statx& folder, const struct statx& old) {
  constexpr uint64_t kGuarded = STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND;
  if (S_ISDIR(old.stx_mode)) return EISDIR;
  if ((old.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0) return EBUSY;
  if (((old.stx_attributes | folder.stx_attributes) & kGuarded) != 0) return EPERM;
  const bool sticky = (folder.stx_mode & S_ISVTX) != 0;
  const bool ours = old.stx_uid == geteuid() || folder.stx_uid == geteuid();
  return sticky && !ours && !HasCapability(CAP_FOWNER) ? EPERM : 0;
}

}  // namespace

Error FailedAt(const std::string& path, const char* action, int error_number) {
  Error error = SystemError(path, action, error_number);
  error.path = path;
  return error;
}

Result<void> CheckNames(const std::string& directory, std::span<const NamedMemory> files) {
  std::unordered_set<std::string_view> seen;
  for (const auto& [name, memory] : files) {
    const bool possible = !name.empty() && name != "." && name != ".." && name.size() <= kLongestName &&
                          name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
    if (!possible) {
      return Error{ErrorCode::kInvalid, fmt::format("'{}' cannot be the name of a file in {}", name, directory),
                   directory};
    }
    if (!seen.insert(name).second) {
      return Error{ErrorCode::kInvalid, fmt::format("the name '{}' is there twice", name), directory + "/" + name};
    }
  }
  return {};
}

Result<void> CheckTotal(const std::string& directory, std::span<const NamedMemory> files) {
  uint64_t total = 0;
  for (const auto& [name, memory] : files) {
    // Neither sum overflows: each summand, and the total so far, is at most 2^63.
    const bool possible = memory.size() <= INT64_MAX;
    if (possible) total += RoundUp(memory.size(), lease::kBlock);
    if (possible && total <= INT64_MAX) continue;
    return Error{ErrorCode::kInvalid, fmt::format("{}: the tensors have more than 2^63 - 1 bytes together", directory),
                 directory};
  }
  return {};
}

Result<UniqueFd> OpenToSave(const std::string& directory, std::span<const NamedMemory> files) {
  UniqueFd folder(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return FailedAt(directory, "cannot open the directory", errno);
  if (faccessat(folder.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
    return FailedAt(directory, "no files can be made in the directory", errno);
  }
  const uint64_t limit = FileSizeLimit();
  for (const auto& [name, memory] : files) {
    if (memory.size() <= limit) continue;
    const std::string path = directory + "/" + name;
    return Error{
        ErrorCode::kFileTooBig,
        fmt::format("{}: {} bytes are more than the process's limit of {} (RLIMIT_FSIZE)", path, memory.size(), limit),
        path};
  }
  return folder;
}

Result<void> CheckOneCommit(const std::string& directory, std::span<const NamedMemory> files) {
  if (files.size() > lease::kMaximumFiles) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}: {} files: one commit takes {} at most; save them in several calls", directory,
                             files.size(), lease::kMaximumFiles),
                 directory};
  }
  uint64_t names = 0, blocks = 0;
  for (const auto& [name, memory] : files) {
    names += name.size() + 1;
    blocks += RoundUp(memory.size(), lease::kBlock) / lease::kBlock;
  }
  const uint64_t body = lease::CommitManyBody(files.size(), names, blocks);
  if (body <= lease::kMaximumBody) return {};
  return Error{ErrorCode::kInvalid,
               fmt::format("{}: names and checksums of {} files take {} bytes: one commit takes {} at most; "
                           "save them in several calls",
                           directory, files.size(), body, lease::kMaximumBody),
               directory};
}

Result<void> CheckReplaceable(const UniqueFd& folder, const std::string& directory,
                              std::span<const NamedMemory> files) {
  constexpr unsigned kWanted = STATX_TYPE | STATX_MODE | STATX_UID;
  struct statx around {};
  if (statx(folder.get(), "", AT_EMPTY_PATH, kWanted, &around) != 0) {
    return FailedAt(directory, "cannot look at the directory", errno);
  }
  for (const auto& file : files) {
    struct statx old {};
    int why = 0;
    if (statx(folder.get(), file.name.c_str(), AT_SYMLINK_NOFOLLOW, kWanted, &old) == 0) {
      why = WhyNotReplaceable(around, old);
    } else if (errno != ENOENT) {
      why = errno;
    }
    if (why != 0) return FailedAt(directory + "/" + file.name, "no file can take this place", why);
  }
  return {};
}

}  // namespace weightfs::client
