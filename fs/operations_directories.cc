// SPDX-License-Identifier: Apache-2.0
// Open directories: listing with and without attributes, and fsync.
#include <cerrno>
#include <string_view>
#include <vector>

#include "fs/lease_server.h"
#include "fs/operations.h"

namespace weightfs {
namespace {

using DirectoryPtr = std::shared_ptr<DirectoryHandle>;

DirectoryPtr HandleOf(const fuse_file_info* file) { return HandleRegistry<DirectoryHandle>::Get(file->fh); }

void CloseDirectory(Filesystem& filesystem, uint64_t number) {
  const DirectoryPtr handle = filesystem.directories().Remove(number);
  if (handle == nullptr) return;
  if (filesystem.leases() != nullptr) filesystem.leases()->tickets().Forget(handle.get());
  filesystem.names().Close(handle->inode);
}

void OpenDirectory(Filesystem& filesystem, Reply reply, InodeId ino, fuse_file_info file) {
  Result<InodePtr> inode = filesystem.names().Open(ino);
  if (!inode.has_value()) {
    reply.Fail(inode.error());
    return;
  }
  auto handle = std::make_shared<DirectoryHandle>();
  handle->inode = std::move(*inode);
  file.fh = filesystem.directories().Add(std::move(handle));
  // The kernel may cache the listing for the next reader, because it sees and invalidates on every change of names.
  file.cache_readdir = 1;
  file.keep_cache = 1;
  if (!reply.Open(file, 0)) CloseDirectory(filesystem, file.fh);
}

void ReleaseDirectory(Filesystem& filesystem, Reply reply, uint64_t number) {
  CloseDirectory(filesystem, number);
  reply.Ok();
}

bool IsDots(std::string_view name) { return name == "." || name == ".."; }

fuse_entry_param OnlyType(const DirectoryEntry& entry) {
  fuse_entry_param only_type{};
  only_type.attr.st_ino = entry.ino.value;
  only_type.attr.st_mode = entry.type;
  return only_type;
}

// The kernel caches the name and attributes of an entry for a long time, so look them up now: the name may belong to
// another file than in the snapshot. Inode 0 makes the kernel ignore a name that is gone.
fuse_entry_param FreshEntry(Filesystem& filesystem, const DirectoryPtr& directory, const DirectoryEntry& entry) {
  if (!IsDots(entry.name)) {
    const Result<Attributes> found = filesystem.names().Lookup(directory->inode->id, entry.name);
    if (found.has_value()) return ToEntry(*found, filesystem.cache_seconds());
  }
  return OnlyType(entry);
}

// Positions are indexes in the snapshot plus one; position 0 is the beginning and takes a new snapshot. `plus` adds the
// attributes of each entry.
void ReadDirectory(Filesystem& filesystem, Reply reply, const DirectoryPtr& directory, uint64_t position, size_t size,
                   fuse_req_t request, bool plus) {
  const auto entries = directory->Snapshot(filesystem.names(), position == 0);
  if (!entries.has_value()) {
    reply.Fail(entries.error());
    return;
  }
  std::vector<char> out(size);
  std::vector<InodeId> known;  // the kernel counts a lookup for each
  size_t used = 0;
  for (uint64_t i = position; i < (*entries)->size(); ++i) {
    const DirectoryEntry& entry = (**entries)[i];
    const auto put = [&](char* to, size_t room, const fuse_entry_param& shown) {
      const char* name = entry.name.c_str();
      const auto next = static_cast<off_t>(i + 1);
      return plus ? fuse_add_direntry_plus(request, to, room, name, &shown, next)
                  : fuse_add_direntry(request, to, room, name, &shown.attr, next);
    };
    // Without a buffer libfuse only returns the required size, so that an entry that does not fit is not looked up.
    if (put(nullptr, 0, {}) > size - used) break;
    const fuse_entry_param shown = plus ? FreshEntry(filesystem, directory, entry) : OnlyType(entry);
    used += put(out.data() + used, size - used, shown);
    if (shown.ino == 0) continue;
    filesystem.store().inodes().AddLookups(InodeId{shown.ino}, 1);
    known.push_back(InodeId{shown.ino});
  }
  if (reply.Bytes({out.data(), used})) return;
  for (const InodeId ino : known) filesystem.names().Forget(ino, 1);
}

// Makes the names of a directory durable, with everything before them: one log holds all changes.
void SyncDirectory(Filesystem& filesystem, Reply reply, const InodePtr& directory) {
  filesystem.store().Sync(directory, FinishWith(std::move(reply)));
}

}  // namespace

void AddDirectoryOperations(fuse_lowlevel_ops& operations) {
  operations.opendir = [](fuse_req_t request, fuse_ino_t ino, fuse_file_info* file) {
    Dispatch(request, OpenDirectory, InodeId{ino}, *file);
  };
  operations.releasedir = [](fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
    Dispatch(request, ReleaseDirectory, file->fh);
  };
  operations.readdir = [](fuse_req_t request, fuse_ino_t, size_t size, off_t position, fuse_file_info* file) {
    Dispatch(request, ReadDirectory, HandleOf(file), static_cast<uint64_t>(position), size, request,
             /*plus=*/false);
  };
  operations.readdirplus = [](fuse_req_t request, fuse_ino_t, size_t size, off_t position, fuse_file_info* file) {
    Dispatch(request, ReadDirectory, HandleOf(file), static_cast<uint64_t>(position), size, request,
             /*plus=*/true);
  };
  operations.fsyncdir = [](fuse_req_t request, fuse_ino_t, int, fuse_file_info* file) {
    Dispatch(request, SyncDirectory, HandleOf(file)->inode);
  };
}

}  // namespace weightfs
