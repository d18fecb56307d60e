// SPDX-License-Identifier: Apache-2.0
// The FUSE operations, by group. Each operation is one function `Name(Filesystem&, Reply, …)` that consumes its Reply;
// its libfuse callback only converts types. Private to fs/.
#pragma once

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "fs/filesystem.h"
#include "fs/user_limit.h"

namespace weightfs {

// A write whose cost is mostly copying, not the round trip. Its buffer is worth adopting, its acknowledgment waits for
// slow devices, and no receiver spins after it.
inline constexpr size_t kLargeWrite = 128 * kKiB;

// Each function sets the members of its group.
void AddNameOperations(fuse_lowlevel_ops& operations);
void AddAttributeOperations(fuse_lowlevel_ops& operations);
void AddFileOperations(fuse_lowlevel_ops& operations);
void AddSpaceOperations(fuse_lowlevel_ops& operations);
void AddDirectoryOperations(fuse_lowlevel_ops& operations);
void AddIoctlOperations(fuse_lowlevel_ops& operations);

inline Filesystem& FilesystemOf(fuse_req_t request) { return *static_cast<Filesystem*>(fuse_req_userdata(request)); }

using FilePtr = std::shared_ptr<FileHandle>;

inline FilePtr FileOf(const fuse_file_info* file) { return HandleRegistry<FileHandle>::Get(file->fh); }

// Counts one more open file of the caller. Replies EMFILE and returns nullopt when the caller has too many.
inline std::optional<UserLimit::Share> TakeOpen(Filesystem& filesystem, Reply& reply) {
  auto share = filesystem.opens().Take(reply.caller().uid);
  if (!share.has_value()) reply.Errno(EMFILE);
  return share;
}

// The inode that the caller wants to create; `mode` includes the type.
inline CreateRequest RequestOf(const Reply& reply, uint32_t mode) {
  const fuse_ctx& caller = reply.caller();
  CreateRequest request;
  request.mode = mode;
  request.uid = caller.uid;
  request.gid = caller.gid;
  request.umask = caller.umask;
  return request;
}

// Calls `operation(filesystem, reply, arguments…)` for a request.
template <typename Operation, typename... Arguments>
void Dispatch(fuse_req_t request, Operation operation, Arguments&&... arguments) noexcept {
  Filesystem& filesystem = FilesystemOf(request);
  operation(filesystem, filesystem.MakeReply(request), std::forward<Arguments>(arguments)...);
}

// The call for a later time. It has copies of the arguments, because the receiver's buffer may be reused before.
template <typename Operation, typename... Arguments>
auto Bind(Filesystem& filesystem, Operation operation, Arguments... arguments) {
  return [&filesystem, operation, ... arguments = std::move(arguments)](Reply reply) {
    operation(filesystem, std::move(reply), arguments...);
  };
}

// Same as Dispatch for an operation that may take long (Filesystem::RunOnReceiverOrPool).
template <typename Operation, typename... Arguments>
void DispatchToReceiverOrPool(fuse_req_t request, Operation operation, Arguments... arguments) noexcept {
  Filesystem& filesystem = FilesystemOf(request);
  filesystem.RunOnReceiverOrPool(filesystem.MakeReply(request), Bind(filesystem, operation, std::move(arguments)...));
}

// Same for an operation that waits for a commit, or for programs (Filesystem::RunOnPool).
template <typename Operation, typename... Arguments>
void DispatchToPool(fuse_req_t request, Operation operation, Arguments... arguments) noexcept {
  Filesystem& filesystem = FilesystemOf(request);
  filesystem.RunOnPool(filesystem.MakeReply(request), Bind(filesystem, operation, std::move(arguments)...));
}

// Makes a Reply copyable for a callback, because std::function must be copyable.
inline std::shared_ptr<Reply> Share(Reply reply) { return std::make_shared<Reply>(std::move(reply)); }

inline Done FinishWith(Reply reply) {
  return [kept = Share(std::move(reply))](const Result<void>& result) { kept->Finish(result); };
}

}  // namespace weightfs
