// SPDX-License-Identifier: Apache-2.0
// Completes replies of a libfuse that is older than the kernel it talks to (before 3.17), which can neither grant
// DIRECT_IO_ALLOW_MMAP nor requests above 1 MiB nor parallel direct writes. The replies are changed on their way to the
// kernel, in the writev that fuse_session_custom_io lets us have. Pure functions on bytes, and the thread's note of
// which reply is about to be written.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace weightfs {

struct InitCompletion {
  uint64_t flags = 0;      // to add
  uint32_t max_write = 0;  // 0 leaves what libfuse wrote
};

// Changes the body of an INIT reply (struct fuse_init_out). False, and nothing is changed, when it is too short to
// hold what is asked for.
bool CompleteInitReply(std::span<std::byte> body, const InitCompletion& completion);

// Adds open flags to the body of an OPEN or CREATE reply; its last 16 bytes are struct fuse_open_out. False when it is
// shorter.
bool CompleteOpenReply(std::span<std::byte> body, uint32_t open_flags);

// While it lives, the next reply that this thread writes is completed. libfuse writes a reply on the thread that calls
// its reply function, before that returns.
class ReplyCompletion {
 public:
  explicit ReplyCompletion(const InitCompletion& init);
  explicit ReplyCompletion(uint32_t open_flags);
  ~ReplyCompletion();
  ReplyCompletion(const ReplyCompletion&) = delete;
  ReplyCompletion& operator=(const ReplyCompletion&) = delete;
  // True once a reply was completed.
  bool done() const { return done_; }

  // Completes the reply in `iov` (header first) as this thread's ReplyCompletion asks. Error replies stay as they are.
  static void Apply(const iovec* iov, int count);

 private:
  std::optional<InitCompletion> init_;
  uint32_t open_flags_ = 0;
  bool done_ = false;
};

}  // namespace weightfs
