// SPDX-License-Identifier: Apache-2.0
// The operations, by group. Each operation is one function `Name(Filesystem&, Reply, …)` that consumes its Reply; the
// callback of libfuse around it only translates types. Private to fs/.
#pragma once

#include <memory>

#include "fs/filesystem.h"

namespace weightfs {

// A write that is more copying than a round trip: its buffer is worth keeping, it waits for devices that are behind,
// and nobody spins after it.
inline constexpr size_t kLargeWrite = 128 * kKiB;

// Each fills in its group's members.
void AddNameOperations(fuse_lowlevel_ops& operations);
void AddAttributeOperations(fuse_lowlevel_ops& operations);
void AddFileOperations(fuse_lowlevel_ops& operations);
void AddSpaceOperations(fuse_lowlevel_ops& operations);
void AddDirectoryOperations(fuse_lowlevel_ops& operations);
void AddIoctlOperations(fuse_lowlevel_ops& operations);

inline Filesystem& FilesystemOf(fuse_req_t request) { return *static_cast<Filesystem*>(fuse_req_userdata(request)); }

using FilePtr = std::shared_ptr<FileHandle>;

inline FilePtr FileOf(const fuse_file_info* file) { return HandleRegistry<FileHandle>::Get(file->fh); }

// What the caller wants made; `mode` with the type.
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
  operation(filesystem, Reply(request, filesystem.requests()), std::forward<Arguments>(arguments)...);
}

// A callback that moves a Reply along: std::function copies, a Reply does not.
inline std::shared_ptr<Reply> Share(Reply reply) { return std::make_shared<Reply>(std::move(reply)); }

inline Done FinishWith(Reply reply) {
  return [kept = Share(std::move(reply))](const Result<void>& result) { kept->Finish(result); };
}

}  // namespace weightfs
