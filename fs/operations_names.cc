// SPDX-License-Identifier: Apache-2.0
// Names: lookup, creation without an open, removal, renames, links.
#include <sys/sysmacros.h>

#include <cerrno>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fs/operations.h"

namespace weightfs {
namespace {

void Lookup(Filesystem& filesystem, Reply reply, InodeId parent, std::string_view name) {
  Result<Attributes> found = filesystem.names().Lookup(parent, name);
  if (!found.has_value() && found.error().code == ErrorCode::kNotFound) {
    return reply.NoEntry(filesystem.cache_seconds());
  }
  filesystem.ReplyEntry(std::move(reply), found);
}

void Forget(Filesystem& filesystem, InodeId ino, uint64_t count) {
  filesystem.page_cache().Forget(ino);
  filesystem.read_history().Forget(ino);
  filesystem.names().Forget(ino, count);
}

void MakeNode(Filesystem& filesystem, Reply reply, InodeId parent, std::string_view name, mode_t mode, dev_t device) {
  CreateRequest request = RequestOf(reply, mode);
  request.device_major = major(device);
  request.device_minor = minor(device);
  filesystem.ReplyEntry(std::move(reply), filesystem.names().Create(parent, name, request));
}

void MakeDirectory(Filesystem& filesystem, Reply reply, InodeId parent, std::string_view name, mode_t mode) {
  const CreateRequest request = RequestOf(reply, S_IFDIR | (mode & 07777));
  filesystem.ReplyEntry(std::move(reply), filesystem.names().Create(parent, name, request));
}

void MakeSymlink(Filesystem& filesystem, Reply reply, InodeId parent, std::string_view name, std::string_view target) {
  CreateRequest request = RequestOf(reply, S_IFLNK | 0777);
  request.umask = 0;  // a symbolic link always has all permissions
  request.symlink = target;
  filesystem.ReplyEntry(std::move(reply), filesystem.names().Create(parent, name, request));
}

void ReadLink(Filesystem& filesystem, Reply reply, InodeId ino) {
  reply.Link(filesystem.names().ReadLink(ino));
}

// Runs `change` after the store has what shared mappings have changed in the files: no name survives without its data.
void AfterMappedChanges(Filesystem& filesystem, Reply reply, std::vector<InodeId> files,
                        const std::function<void(Reply)>& change) {
  if (files.empty()) return change(std::move(reply));
  filesystem.RunOnPagePool(std::move(reply), [&filesystem, files = std::move(files), change](Reply kept) {
    for (const InodeId ino : files) {
      if (const auto taken = filesystem.TakeMappedChanges(ino); !taken) return kept.Fail(taken.error());
    }
    change(std::move(kept));
  });
}

void HardLink(Filesystem& filesystem, Reply reply, InodeId ino, InodeId parent, std::string_view name) {
  const auto link = [&filesystem, ino, parent, name = std::string(name)](Reply kept) {
    const auto linked = filesystem.names().Link(ino, parent, name);
    // A leased commit has replaced the file, of which the kernel will know soon: it looks the old name up again.
    const bool gone = !linked && linked.error().code == ErrorCode::kNotFound;
    filesystem.ReplyEntry(std::move(kept), gone ? Error{ErrorCode::kStale} : linked);
  };
  if (!filesystem.MayHaveMappedChanges(ino)) return link(std::move(reply));
  AfterMappedChanges(filesystem, std::move(reply), {ino}, link);
}

void Unlink(Filesystem& filesystem, Reply reply, InodeId parent, std::string_view name) {
  filesystem.removed_names().Add(parent, name);
  reply.Finish(filesystem.names().Unlink(parent, name));
}

void RemoveDirectory(Filesystem& filesystem, Reply reply, InodeId parent, std::string_view name) {
  filesystem.removed_names().Add(parent, name);
  reply.Finish(filesystem.names().RemoveDirectory(parent, name));
}

void Rename(Filesystem& filesystem, Reply reply, InodeId parent, std::string_view name, InodeId new_parent,
            std::string_view new_name, unsigned flags) {
  RenameMode mode = RenameMode::kReplace;
  switch (flags) {
    case 0: break;
    case RENAME_NOREPLACE: mode = RenameMode::kNoReplace; break;
    case RENAME_EXCHANGE: mode = RenameMode::kExchange; break;
    default: return reply.Errno(EINVAL);  // WHITEOUT is for overlays, which a tensor store does not need
  }
  bool others = false, slow = false;
  std::vector<InodeId> files;
  const auto consider = [&](InodeId directory, std::string_view entry) {  // true: a directory
    const auto found = filesystem.names().Lookup(directory, entry);
    if (!found.has_value()) return false;
    others = others || !S_ISREG(found->mode);
    slow = slow || filesystem.store().CommitsSlowly(found->ino);
    if (filesystem.MayHaveMappedChanges(found->ino)) files.push_back(found->ino);
    return S_ISDIR(found->mode);
  };
  const bool exchange = mode == RenameMode::kExchange, moves_file = !consider(parent, name);
  const bool returns_file = exchange && !consider(new_parent, new_name);
  const auto rename = [=, &filesystem, name = std::string(name), new_name = std::string(new_name)](Reply kept) {
    filesystem.removed_names().Add(parent, name);
    const auto renamed = filesystem.names().Rename(parent, name, new_parent, new_name, mode);
    if (renamed && moves_file) filesystem.NoteMoved(new_parent, new_name);
    if (renamed && returns_file) filesystem.NoteMoved(parent, name);
    kept.Finish(renamed);
  };
  if (!others && !slow && files.empty()) return filesystem.RunOnReceiverOrPool(std::move(reply), rename);
  // The name of a directory or a symbolic link is one of other files, too, also of those whose close has returned.
  if (others) files = filesystem.page_cache().AllThatMayHoldChanges();
  AfterMappedChanges(filesystem, std::move(reply), std::move(files), [&filesystem, rename, others](Reply now) {
    filesystem.RunOnPool(std::move(now), [&filesystem, rename, others](Reply kept) {
      if (others) filesystem.WaitForReleases();
      rename(std::move(kept));
    });
  });
}

}  // namespace

void AddNameOperations(fuse_lowlevel_ops& operations) {
  operations.lookup = [](fuse_req_t request, fuse_ino_t parent, const char* name) {
    Dispatch(request, Lookup, InodeId{parent}, name);
  };
  operations.forget = [](fuse_req_t request, fuse_ino_t ino, uint64_t count) {
    Forget(FilesystemOf(request), InodeId{ino}, count);
    fuse_reply_none(request);
  };
  operations.forget_multi = [](fuse_req_t request, size_t count, fuse_forget_data* forgets) {
    for (size_t i = 0; i < count; ++i) Forget(FilesystemOf(request), InodeId{forgets[i].ino}, forgets[i].nlookup);
    fuse_reply_none(request);
  };
  operations.readlink = [](fuse_req_t request, fuse_ino_t ino) { Dispatch(request, ReadLink, InodeId{ino}); };
  operations.mknod = [](fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
    DispatchToReceiverOrPool(request, MakeNode, InodeId{parent}, std::string(name), mode, device);
  };
  operations.mkdir = [](fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
    DispatchToReceiverOrPool(request, MakeDirectory, InodeId{parent}, std::string(name), mode);
  };
  operations.symlink = [](fuse_req_t request, const char* target, fuse_ino_t parent, const char* name) {
    DispatchToReceiverOrPool(request, MakeSymlink, InodeId{parent}, std::string(name), std::string(target));
  };
  operations.link = [](fuse_req_t request, fuse_ino_t ino, fuse_ino_t parent, const char* name) {
    if (FilesystemOf(request).store().CommitsSlowly(InodeId{ino})) {
      DispatchToPool(request, HardLink, InodeId{ino}, InodeId{parent}, std::string(name));
    } else {
      DispatchToReceiverOrPool(request, HardLink, InodeId{ino}, InodeId{parent}, std::string(name));
    }
  };
  operations.unlink = [](fuse_req_t request, fuse_ino_t parent, const char* name) {
    DispatchToReceiverOrPool(request, Unlink, InodeId{parent}, std::string(name));
  };
  operations.rmdir = [](fuse_req_t request, fuse_ino_t parent, const char* name) {
    DispatchToReceiverOrPool(request, RemoveDirectory, InodeId{parent}, std::string(name));
  };
  operations.rename = [](fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
                         const char* new_name, unsigned flags) {
    Dispatch(request, Rename, InodeId{parent}, name, InodeId{new_parent}, new_name, flags);
  };
}

}  // namespace weightfs
