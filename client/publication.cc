// SPDX-License-Identifier: Apache-2.0
#include "client/publication.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/xattr.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "common/result.h"
#include "common/unique_fd.h"
#include "lease/ioctl.h"
#include "lease/on_mount.h"

namespace weightfs::client {
namespace {

// The reason and the next step, for an error that concerns the inode at a path.
std::string_view Explain(int error) {
  switch (error) {
    case ETXTBSY: return "open for writing; close it and publish again";
    case EBUSY: return "published, or being published, as a part of another publication; unpublish that one first";
    case EIO: return "its data could not be written; write it again and publish";
    case EEXIST: return "published already with another version; unpublish it first";
    case EMLINK: return "also has a name outside the directory, where it would become immutable, too; copy it first";
    case E2BIG: return "more than 131,072 files and directories; publish its subdirectories instead";
    case EPERM: return "belongs to another user; only its owner or root may publish and unpublish it";
    case EINVAL: return "the root of a mount cannot be published; publish a directory in it";
    case ENODATA: return "not published";
    default: return {};
  }
}

Error Explained(const std::string& path, int error) {
  const std::string_view why = Explain(error);
  if (why.empty()) return SystemError(path, "cannot be published or unpublished", error);
  return {ErrorCode{error}, path + ": " + std::string(why), path};
}

// Checks the result of an ioctl: an errno, or 0. Other filesystems may answer it as they like.
Result<void> Answered(int opened, const std::string& directory, int failed) {
  if (failed == ENOTTY || failed == ENOSYS || (failed != ENOTCONN && !lease::IsOnMount(opened))) {
    return Error{ErrorCode::kNotSupported,
                 directory + ": not on a weightfs mount of this version; publications are of directories in one "
                             "('findmnt -t fuse.weightfs' lists them)",
                 directory};
  }
  if (failed != 0) return Explained(directory, failed);
  return {};
}

Result<UniqueFd> Open(const std::string& directory) {
  UniqueFd opened(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened) return SystemError(directory, "cannot be opened");
  return opened;
}

// The kernel checks no ioctl for read-only mounts (WEIGHTFS_CHANGE_ATTRIBUTE).
Result<void> PermitChange(int opened, const std::string& directory) {
  weightfs_change_key change{.version = WEIGHTFS_IOC_VERSION};
  RETURN_IF_ERROR(Answered(opened, directory, ioctl(opened, WEIGHTFS_IOC_CHANGE_KEY, &change) == 0 ? 0 : errno));
  if (fsetxattr(opened, WEIGHTFS_CHANGE_ATTRIBUTE, change.key, sizeof(change.key), 0) == 0) return {};
  return Explained(directory, errno);
}

Result<weightfs_publication> Ask(int opened, const std::string& directory, unsigned long request, uint64_t version) {
  weightfs_publication argument{.version = WEIGHTFS_IOC_VERSION, .number = version};
  if (request != WEIGHTFS_IOC_PUBLICATION) RETURN_IF_ERROR(PermitChange(opened, directory));
  RETURN_IF_ERROR(Answered(opened, directory, ioctl(opened, request, &argument) == 0 ? 0 : errno));
  if (argument.error == 0) return argument;
  argument.path[sizeof(argument.path) - 1] = '\0';
  const std::string inside = argument.path, path = inside.empty() ? directory : directory + "/" + inside;
  if (request == WEIGHTFS_IOC_UNPUBLISH && argument.error == ETXTBSY) {
    return Error{ErrorCode{ETXTBSY}, path + ": read from hot memory by a program that has it open or mapped; end that "
                                            "program and try again", path};
  }
  return Explained(path, static_cast<int>(argument.error));
}

Publication FromIoctl(const weightfs_publication& found) {
  return {.version = found.number,
          .id = std::to_array(found.id),
          .time_ns = found.time_ns,
          .files = found.files,
          .bytes = found.bytes};
}

}  // namespace

Result<Publication> Publish(const std::string& directory, std::optional<uint64_t> version) {
  ASSIGN_OR_RETURN(const UniqueFd opened, Open(directory));
  return Publish(opened.get(), directory, version);
}

Result<Publication> Publish(int opened, const std::string& directory, std::optional<uint64_t> version) {
  if (version == 0 || version > INT64_MAX) {
    return Error{ErrorCode::kInvalid, directory + ": a version is a number from 1 to 2^63 - 1", directory};
  }
  ASSIGN_OR_RETURN(const auto found, Ask(opened, directory, WEIGHTFS_IOC_PUBLISH, version.value_or(0)));
  return FromIoctl(found);
}

Result<void> Unpublish(const std::string& directory) {
  ASSIGN_OR_RETURN(const UniqueFd opened, Open(directory));
  return Unpublish(opened.get(), directory);
}

Result<void> Unpublish(int opened, const std::string& directory) {
  RETURN_IF_ERROR(Ask(opened, directory, WEIGHTFS_IOC_UNPUBLISH, 0));
  return {};
}

Result<Publication> PublicationOf(const std::string& directory) {
  ASSIGN_OR_RETURN(const UniqueFd opened, Open(directory));
  return PublicationOf(opened.get(), directory);
}

Result<Publication> PublicationOf(int opened, const std::string& directory) {
  ASSIGN_OR_RETURN(const auto found, Ask(opened, directory, WEIGHTFS_IOC_PUBLICATION, 0));
  return FromIoctl(found);
}

}  // namespace weightfs::client
