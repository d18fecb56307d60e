// SPDX-License-Identifier: Apache-2.0
// Attributes of inodes, plain and extended, and filesystem statistics.
#include <linux/capability.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fs/caller.h"
#include "fs/operations.h"
#include "lease/ioctl.h"
#include "lease/protocol.h"
#include "store/names/acl.h"

namespace weightfs {
namespace {

void GetAttributes(Filesystem& filesystem, Reply reply, InodeId ino) {
  reply.Attribute(filesystem.names().GetAttributes(ino), filesystem.cache_seconds());
}

Timestamp ToTimestamp(const timespec& time) {
  return {.seconds = time.tv_sec, .nanoseconds = static_cast<uint32_t>(time.tv_nsec)};
}

AttributeChange ToChange(const struct stat& attributes, int set) {
  AttributeChange change;
  if ((set & FUSE_SET_ATTR_MODE) != 0) change.mode = attributes.st_mode & 07777;
  if ((set & FUSE_SET_ATTR_UID) != 0) change.uid = attributes.st_uid;
  if ((set & FUSE_SET_ATTR_GID) != 0) change.gid = attributes.st_gid;
  if ((set & FUSE_SET_ATTR_SIZE) != 0) change.size = static_cast<uint64_t>(attributes.st_size);
  if ((set & FUSE_SET_ATTR_ATIME) != 0) change.accessed = ToTimestamp(attributes.st_atim);
  if ((set & FUSE_SET_ATTR_MTIME) != 0) change.modified = ToTimestamp(attributes.st_mtim);
  if ((set & FUSE_SET_ATTR_CTIME) != 0) change.changed = ToTimestamp(attributes.st_ctim);
  const Timestamp now = Timestamp::Now();  // the same time for both
  if ((set & FUSE_SET_ATTR_ATIME_NOW) != 0) change.accessed = now;
  if ((set & FUSE_SET_ATTR_MTIME_NOW) != 0) change.modified = now;
  return change;
}

void SetAttributes(Filesystem& filesystem, Reply reply, InodeId ino, const AttributeChange& change) {
  if (change.size.value_or(0) > kMaximumFileSize) return reply.Errno(EFBIG);
  const auto apply = [&filesystem, ino, change](Reply later) {
    later.Attribute(filesystem.store().SetAttributes(ino, change), filesystem.cache_seconds());
  };
  // A truncation may read the block at the new end.
  if (change.size.has_value()) {
    filesystem.RunOnPool(std::move(reply), apply);
  } else {
    filesystem.RunOnReceiverOrPool(std::move(reply), apply);
  }
}

// True when the caller may set an ACL and keep the set-group-id bit. The kernel holds the inode's lock, so mode and
// group do not change. The kernel knows the answer, but libfuse does not pass it on.
Result<bool> KeepsSetGroupId(Filesystem& filesystem, const Reply& reply, InodeId ino, std::string_view name) {
  if (name != kAccessAclName) return true;
  const auto now = filesystem.names().GetAttributes(ino);
  if (!now.has_value() || (now->mode & S_ISGID) == 0) return true;
  ASSIGN_OR_RETURN(const Caller caller, CallerOf(reply));
  return caller.Has(now->gid) || caller.Can(CAP_FSETID);
}

// A program shows by this call that its mount of the directory is not read-only: the kernel has checked that. It keeps
// the mount writable until the reply, and an attribute of this namespace needs no other right.
void PermitChange(Filesystem& filesystem, Reply reply, InodeId ino, std::string_view key) {
  lease::Token token{};
  if (key.size() != token.size()) return reply.Errno(EINVAL);
  std::memcpy(token.data(), key.data(), token.size());
  const LeaseTickets::Opened opened = filesystem.tickets().Find(token, reply.caller().uid);
  if (opened.directory == nullptr || opened.directory->inode->id != ino) return reply.Errno(EBADF);
  opened.directory->PermitChange();
  reply.Ok();
}

// A list sets the mode of its file. Without FUSE_POSIX_ACL, Linux before 6.2 takes one for an attribute like any other
// (fuse_xattr_handlers), and lets every user change it.
bool IsUncheckedAcl(const Filesystem& filesystem, std::string_view name) {
  return (filesystem.features.flags & kernel_flag::kPosixAcl) == 0 && IsAcl(name);
}

// A value waits in memory, so that a user's values together are limited.
void SetExtended(Filesystem& filesystem, Reply reply, InodeId ino, std::string_view name, std::string_view value,
                 int flags) {
  if (name == WEIGHTFS_CHANGE_ATTRIBUTE) return PermitChange(filesystem, std::move(reply), ino, value);
  if (IsUncheckedAcl(filesystem, name)) return reply.Errno(EOPNOTSUPP);
  auto waiting = filesystem.waiting_values().Take(reply.caller().uid, value.size());
  if (!waiting.has_value()) return reply.Errno(ENOMEM);
  const AttributeWrite mode = (flags & XATTR_CREATE) != 0    ? AttributeWrite::kCreate
                              : (flags & XATTR_REPLACE) != 0 ? AttributeWrite::kReplace
                                                             : AttributeWrite::kAny;
  const auto share = std::make_shared<UserLimit::Share>(std::move(*waiting));
  const auto set = [&filesystem, ino, name = std::string(name), value = std::string(value), mode, share](Reply now) {
    const auto keeps = KeepsSetGroupId(filesystem, now, ino, name);
    if (!keeps.has_value()) return now.Fail(keeps.error());
    now.Finish(filesystem.names().SetExtendedAttribute(ino, name, value, mode, *keeps));
  };
  filesystem.RunOnReceiverOrPool(std::move(reply), set);
}

void GetExtended(Filesystem& filesystem, Reply reply, InodeId ino, std::string_view name, size_t capacity) {
  if (IsUncheckedAcl(filesystem, name)) return reply.Errno(EOPNOTSUPP);
  reply.ExtendedAttribute(filesystem.names().GetExtendedAttribute(ino, name), capacity);
}

void ListExtended(Filesystem& filesystem, Reply reply, InodeId ino, size_t capacity) {
  const Result<std::vector<std::string>> names = filesystem.names().ListExtendedAttributes(ino);
  if (!names.has_value()) return reply.Fail(names.error());
  // The kernel protects the values of trusted attributes, but leaves their names to us.
  const auto is_trusted = [](const std::string& name) { return name.starts_with("trusted."); };
  bool hidden = std::any_of(names->begin(), names->end(), is_trusted);
  if (hidden) {
    const auto caller = CallerOf(reply);
    if (!caller.has_value()) return reply.Fail(caller.error());
    hidden = !caller->Can(CAP_SYS_ADMIN);
  }
  std::string list;  // each name ends with a zero byte
  for (const std::string& name : *names) {
    if (!IsUncheckedAcl(filesystem, name) && !(hidden && is_trusted(name))) list.append(name).push_back('\0');
  }
  reply.ExtendedAttribute(list, capacity);
}

void RemoveExtended(Filesystem& filesystem, Reply reply, InodeId ino, std::string_view name) {
  if (IsUncheckedAcl(filesystem, name)) return reply.Errno(EOPNOTSUPP);
  reply.Finish(filesystem.names().RemoveExtendedAttribute(ino, name));
}

// The kernel does not wait until a file is closed or forgotten. Another thread may still be processing the last one of
// a deleted file when a program asks for the space that it frees.
void Statistics(Filesystem& filesystem, Reply reply) {
  filesystem.ends().WaitForNone();
  const SpaceStatistics space = filesystem.store().Space();
  struct statvfs out = {};
  out.f_bsize = kBlockSize;
  out.f_frsize = kBlockSize;
  out.f_blocks = space.total.value;
  out.f_bfree = space.free.value;
  out.f_bavail = space.available.value;
  // The catalog has no fixed number of inodes, but its filesystem has limited space.
  out.f_ffree = space.free_inodes;
  out.f_favail = out.f_ffree;
  out.f_files = space.inodes + out.f_ffree;
  out.f_namemax = kMaximumName;
  reply.Statistics(out);
}

}  // namespace

void AddAttributeOperations(fuse_lowlevel_ops& operations) {
  operations.getattr = [](fuse_req_t request, fuse_ino_t ino, fuse_file_info*) {
    Dispatch(request, GetAttributes, InodeId{ino});
  };
  operations.setattr = [](fuse_req_t request, fuse_ino_t ino, struct stat* attributes, int set, fuse_file_info*) {
    Dispatch(request, SetAttributes, InodeId{ino}, ToChange(*attributes, set));
  };
  operations.statfs = [](fuse_req_t request, fuse_ino_t) { DispatchToReceiverOrPool(request, Statistics); };
  operations.setxattr = [](fuse_req_t request, fuse_ino_t ino, const char* name, const char* value, size_t size,
                           int flags) {
    Dispatch(request, SetExtended, InodeId{ino}, name, std::string_view(value, size), flags);
  };
  operations.getxattr = [](fuse_req_t request, fuse_ino_t ino, const char* name, size_t capacity) {
    Dispatch(request, GetExtended, InodeId{ino}, name, capacity);
  };
  operations.listxattr = [](fuse_req_t request, fuse_ino_t ino, size_t capacity) {
    DispatchToReceiverOrPool(request, ListExtended, InodeId{ino}, capacity);
  };
  operations.removexattr = [](fuse_req_t request, fuse_ino_t ino, const char* name) {
    DispatchToReceiverOrPool(request, RemoveExtended, InodeId{ino}, std::string(name));
  };
}

}  // namespace weightfs
