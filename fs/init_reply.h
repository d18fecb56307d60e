// SPDX-License-Identifier: Apache-2.0
// Completes the replies of a libfuse that is older than the kernel (before 3.17). Such a libfuse supports neither
// DIRECT_IO_ALLOW_MMAP nor requests above 1 MiB nor parallel direct writes. The replies are changed in the writev hook
// of fuse_session_custom_io. Pure functions on bytes, plus a thread-local record of the reply that is about to be
// written.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace weightfs {

struct InitCompletion {
  uint64_t flags = 0;      // flags to add
  uint32_t max_write = 0;  // 0: keep the value of libfuse
};

// What libfuse may not know of the reply to an open.
struct OpenCompletion {
  uint32_t flags = 0;      // FOPEN_* to add
  int32_t backing_id = 0;  // Backing::id; 0: none
};

// Changes the body of an INIT reply (struct fuse_init_out). Returns false, and changes nothing, when the body is too
// short for the requested change.
bool CompleteInitReply(std::span<std::byte> body, const InitCompletion& completion);

// Completes the body of an OPEN or CREATE reply, whose last 16 bytes are struct fuse_open_out. Returns false when the
// body is shorter.
bool CompleteOpenReply(std::span<std::byte> body, const OpenCompletion& completion);

// Completes the next reply that this thread writes during the lifetime of this object. libfuse writes a reply on the
// thread that calls its reply function, before that function returns.
class ReplyCompletion {
 public:
  explicit ReplyCompletion(const InitCompletion& init);
  explicit ReplyCompletion(const OpenCompletion& open);
  ~ReplyCompletion();
  ReplyCompletion(const ReplyCompletion&) = delete;
  ReplyCompletion& operator=(const ReplyCompletion&) = delete;
  // True once a reply was completed.
  bool done() const { return done_; }

  // Completes the reply in `iov` (header first) as this thread's ReplyCompletion requires. Error replies are not
  // changed.
  static void Apply(const iovec* iov, int count);

 private:
  std::optional<InitCompletion> init_;
  OpenCompletion open_;
  bool done_ = false;
};

}  // namespace weightfs
