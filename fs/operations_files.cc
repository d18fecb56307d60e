// SPDX-License-Identifier: Apache-2.0
// Open files: open, create, read, write, flush, sync, release.
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/fuse.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include "fs/caller.h"
#include "fs/operations.h"

namespace weightfs {
namespace {

bool HasSetIds(Inode& inode) {
  MutexLock lock(inode.mutex);
  return (inode.attributes.mode & (S_ISUID | S_ISGID)) != 0;
}

void Open(Filesystem& filesystem, Reply reply, InodeId ino, fuse_file_info file) {
  auto share = TakeOpen(filesystem, reply);
  if (!share.has_value()) return;
  const auto open = [&]() -> Result<InodePtr> {
    const bool truncate = (file.flags & O_TRUNC) != 0;
    if (truncate) {
      ASSIGN_OR_RETURN(const InodePtr inode, filesystem.names().Get(ino));
      bool set_ids = HasSetIds(*inode);
      if (set_ids) {
        ASSIGN_OR_RETURN(const Caller caller, CallerOf(reply));
        set_ids = !caller.Can(CAP_FSETID);
      }
      RETURN_IF_ERROR(filesystem.ClearPrivileges(inode, set_ids));
    }
    return filesystem.store().OpenFile(ino, truncate, MayWrite(file.flags));
  };
  const Result<InodePtr> inode = open();
  if (!inode.has_value()) return reply.Fail(inode.error());
  const OpenCompletion open_reply = filesystem.AddHandle(*inode, file, std::move(*share), reply);
  if (!reply.Open(file, open_reply)) filesystem.DropHandle(file.fh);
}

// Opens a newly created file and replies with both. Reverts everything if the kernel rejects the reply. `looks`: kStale
// makes the kernel look the name up, and open what it finds; it takes the name for unused.
void ReplyCreated(Filesystem& filesystem, Reply reply, const Result<Attributes>& created, fuse_file_info file,
                  UserLimit::Share share, bool looks) {
  if (!created.has_value()) {
    const bool appeared = looks && created.error().code == ErrorCode::kExists;
    return reply.Fail(appeared ? Error{ErrorCode::kStale} : created.error());
  }
  const InodeId ino = created->ino;
  filesystem.store().inodes().AddLookups(ino, 1);
  const Result<InodePtr> inode = filesystem.store().OpenFile(ino, false, MayWrite(file.flags));
  if (!inode.has_value()) {
    filesystem.names().Forget(ino, 1);
    return reply.Fail(looks ? Error{ErrorCode::kStale} : inode.error());  // published meanwhile, for example
  }
  const OpenCompletion open = filesystem.AddHandle(*inode, file, std::move(share), reply);
  if (!reply.Create(*created, filesystem.cache_seconds(), file, open)) {
    filesystem.DropHandle(file.fh);
    filesystem.names().Forget(ino, 1);
  }
}

// Without a name: O_TMPFILE.
void Create(Filesystem& filesystem, Reply reply, InodeId parent, const std::optional<std::string>& name, mode_t mode,
            fuse_file_info file) {
  auto share = TakeOpen(filesystem, reply);
  if (!share.has_value()) return;
  const CreateRequest request = RequestOf(reply, S_IFREG | (mode & 07777));
  const auto created =
      name ? filesystem.names().Create(parent, *name, request) : filesystem.names().CreateUnnamed(parent, request);
  const bool looks = name && (file.flags & O_EXCL) == 0;
  ReplyCreated(filesystem, std::move(reply), created, file, std::move(*share), looks);
}

void Read(Filesystem& filesystem, Reply reply, const FilePtr& file, uint64_t offset, size_t size, bool fills_pages) {
  file->read_bytes.fetch_add(size, std::memory_order_relaxed);
  // Keep the handle until the reply, because the store uses its stream until then.
  const auto read = [&filesystem, file, offset, size, kept = Share(std::move(reply))] {
    filesystem.store().files().Read(file->inode, ByteOffset{offset}, ByteCount{size}, &file->stream,
                            [file, kept](const Result<ReadView>& view) { kept->Data(view); });
  };
  if (!fills_pages || file->pages->BeginFill({offset, offset + size}, read)) read();
}

// Replies to a write whose data is in the store. A large write waits while the data in flight exceeds most of the
// memory for receiving large writes. Then the next write finds a buffer and need not be copied.
void FinishWrite(Filesystem& filesystem, Reply reply, const FilePtr& file, size_t size, bool sync) {
  if (!sync && size >= kLargeWrite) {
    const ByteCount limit{filesystem.options().write_buffers.value * 3 / 4};
    filesystem.store().files().WhenWritesBelow(limit, [kept = Share(std::move(reply)), size] { kept->Written(size); });
    return;
  }
  if (!sync) return reply.Written(size);
  const auto answer = [kept = Share(std::move(reply)), size](const Result<void>& result) {
    if (!result.has_value()) return kept->Fail(result.error());
    kept->Written(size);
  };
  // This may be a part of a long write, whose error the kernel hides behind the bytes of earlier parts.
  filesystem.store().Sync(file->inode, answer, /*kept=*/true);
}

// The state of a write until the store has it.
struct PendingWrite {
  FilePtr file;
  uint64_t offset = 0;
  std::span<const std::byte> data;
  uint32_t user = 0;  // whose turn and share it takes
  bool sync = false;
  WriteReach reach = WriteReach::kAnywhere;
  Buffer holder;                     // owns the data; empty if the data is elsewhere
  std::vector<std::byte> copy = {};  // same
  InodePages::DirectWrite direct = {};
  UserLimit::Share share = {};  // of waiting_writes()
};

void ApplyWrite(Filesystem& filesystem, Reply reply, PendingWrite& write) {
  const auto answer = [&](const Result<void>& written) {
    write.direct.End();
    if (!written.has_value()) return reply.Fail(written.error());
    FinishWrite(filesystem, std::move(reply), write.file, write.data.size(), write.sync);
  };
  filesystem.store().files().Write(write.file->inode, ByteOffset{write.offset}, write.data, write.holder,
                                   write.reach, answer);
}

// Applies the write on another thread. If the kernel must drop the pages of the range first, it may send dirty pages to
// this one.
void ApplyWriteLater(Filesystem& filesystem, Reply reply, PendingWrite write) {
  if (!write.holder) {  // this thread reuses the request's buffer
    write.copy.assign(write.data.begin(), write.data.end());
    write.data = write.copy;
  }
  const auto kept = std::make_shared<PendingWrite>(std::move(write));
  const auto apply = [&filesystem, kept](Reply later) { ApplyWrite(filesystem, std::move(later), *kept); };
  // Another pool: the kernel may wait for its pages before it drops them.
  if (!kept->direct.must_drop()) return filesystem.RunOnPool(kept->user, std::move(reply), apply);
  filesystem.RunOnPagePool(std::move(reply), [&filesystem, kept, apply](Reply later) {
    const Result<void> dropped = filesystem.DropPages(*kept->file->inode, kept->direct);
    if (!dropped.has_value()) return later.Fail(dropped.error());
    apply(std::move(later));
  });
}

// libfuse does not pass these flags (FUSE_WRITE_*) on, but the request precedes its data.
uint32_t WriteFlags(std::span<const std::byte> data) {
  fuse_write_in request;
  std::memcpy(&request, data.data() - sizeof(request), sizeof(request));
  return request.write_flags;
}

// `offset` is also right for O_APPEND: the kernel takes the end of the file under the inode's lock, and only the kernel
// moves it. The parts of a large append arrive concurrently and in any order, so appending them here would reorder
// them.
void Write(Filesystem& filesystem, Reply reply, const FilePtr& file, uint64_t offset, std::span<const std::byte> data,
           int flags, uint64_t lock_owner) {
  if (offset > kMaximumFileSize || data.size() > kMaximumFileSize - offset) return reply.Errno(EFBIG);
  filesystem.NoteChange(*file, lock_owner);
  const bool sync = (flags & (O_SYNC | O_DSYNC)) != 0;
  const uint32_t write_flags = WriteFlags(data);
  const bool from_page_cache = (write_flags & FUSE_WRITE_CACHE) != 0;
  const bool kill_set_ids = (write_flags & FUSE_WRITE_KILL_SUIDGID) != 0;
  if (!from_page_cache) {
    const Result<void> cleared = filesystem.ClearPrivileges(file->inode, kill_set_ids);
    if (!cleared.has_value()) return reply.Fail(cleared.error());
  }
  Buffer holder;
  if (data.size() >= kLargeWrite) holder = ReceiveBuffer::Claim(data, offset);
  // A mapping does not extend a file: content of its dirty pages beyond the end was truncated after they were changed.
  PendingWrite write{.file = file,
                     .offset = offset,
                     .data = data,
                     // The kernel writes pages of mappings back as root, through any handle that may write the file.
                     .user = from_page_cache ? file->user : reply.caller().uid,
                     .sync = sync,
                     .reach = from_page_cache ? WriteReach::kWithinFile : WriteReach::kAnywhere,
                     .holder = std::move(holder)};
  // For a write through its page cache, the kernel already has the bytes in its pages.
  if (!from_page_cache && file->mode == OpenMode::kDirect) {
    write.direct = {*file->pages, {offset, offset + data.size()}};
  }
  bool later = write.direct.must_drop();
  if (!later && filesystem.store().WaitsToWrite(ByteCount{data.size()})) {
    auto share = filesystem.waiting_writes().Take(write.user, data.size());
    later = share.has_value();  // otherwise this receiver waits, and the kernel keeps the writes that follow
    if (later) write.share = std::move(*share);
  }
  if (later) return ApplyWriteLater(filesystem, std::move(reply), std::move(write));
  ApplyWrite(filesystem, std::move(reply), write);
}

// Reports failed writes only to handles opened for writing, because a reader cannot act on them.
void Flush(Filesystem& filesystem, Reply reply, const FilePtr& file, uint64_t lock_owner) {
  if (!file->writable()) return reply.Ok();
  filesystem.NoteClose(file, lock_owner, reply);
  // Keep the handle until the reply.
  const auto answer = [file, kept = Share(std::move(reply))](const Result<void>& result) { kept->Finish(result); };
  filesystem.store().Flush(file->inode, &file->reported_failure, answer);
}

void Release(Filesystem& filesystem, Reply reply, uint64_t handle) {
  filesystem.DropHandle(handle);
  reply.Ok();
}

void Sync(Filesystem& filesystem, Reply reply, const FilePtr& file) {
  filesystem.store().Sync(file->inode, FinishWith(std::move(reply)));
}

}  // namespace

void AddFileOperations(fuse_lowlevel_ops& operations) {
  operations.open = [](fuse_req_t request, fuse_ino_t ino, fuse_file_info* file) {
    Store& store = FilesystemOf(request).store();
    const bool truncate = (file->flags & O_TRUNC) != 0;
    if (truncate && store.WaitsToTruncate(InodeId{ino})) {
      DispatchToPool(request, Open, InodeId{ino}, *file);
    } else if (truncate || store.OpensSlowly(InodeId{ino})) {
      DispatchToReceiverOrPool(request, Open, InodeId{ino}, *file);
    } else {
      Dispatch(request, Open, InodeId{ino}, *file);
    }
  };
  operations.create = [](fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* file) {
    DispatchToReceiverOrPool(request, Create, InodeId{parent}, std::optional<std::string>(name), mode, *file);
  };
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
  operations.tmpfile = [](fuse_req_t request, fuse_ino_t parent, mode_t mode, fuse_file_info* file) {
    DispatchToReceiverOrPool(request, Create, InodeId{parent}, std::optional<std::string>(), mode, *file);
  };
#endif
  operations.read = [](fuse_req_t request, fuse_ino_t, size_t size, off_t offset, fuse_file_info* file) {
    // The kernel sets a lock owner in reads for a program, but not in reads that fill its page cache.
    Dispatch(request, Read, FileOf(file), static_cast<uint64_t>(offset), size, file->lock_owner == 0);
  };
  operations.write = [](fuse_req_t request, fuse_ino_t, const char* data, size_t size, off_t offset,
                        fuse_file_info* file) {
    Dispatch(request, Write, FileOf(file), static_cast<uint64_t>(offset), std::as_bytes(std::span(data, size)),
             file->flags, file->lock_owner);
  };
  operations.flush = [](fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
    Dispatch(request, Flush, FileOf(file), file->lock_owner);
  };
  operations.release = [](fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
    Dispatch(request, Release, file->fh);
  };
  operations.fsync = [](fuse_req_t request, fuse_ino_t, int, fuse_file_info* file) {
    Dispatch(request, Sync, FileOf(file));
  };
}

}  // namespace weightfs
