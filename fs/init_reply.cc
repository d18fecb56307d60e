// SPDX-License-Identifier: Apache-2.0
#include "fs/init_reply.h"

#include <linux/fuse.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "common/units.h"
#include "fs/kernel_features.h"

namespace weightfs {
namespace {

// The part of the reply that is read and changed. Its last field has a name since Linux 6.9: the number of filesystems
// that may lie below a file of the mount, and above those of passthrough.
constexpr size_t kStackDepth = offsetof(fuse_init_out, flags2) + sizeof(fuse_init_out::flags2);
constexpr size_t kInitOut = kStackDepth + sizeof(uint32_t);
constexpr uint32_t kOpenPassthrough = 1U << 7;

// Set by a ReplyCompletion of this thread and read in the writev hook further down the same stack.
thread_local ReplyCompletion* pending = nullptr;

}  // namespace

bool CompleteInitReply(std::span<std::byte> body, const InitCompletion& completion) {
  fuse_init_out out{};
  if (body.size() < kInitOut) return false;
  std::memcpy(&out, body.data(), kInitOut);
  uint64_t flags = out.flags | uint64_t{out.flags2} << 32 | completion.flags;
  // The kernel reads the second word only when the first one announces it.
  if (flags >> 32 != 0) flags |= kernel_flag::kInitExt;
  out.flags = static_cast<uint32_t>(flags);
  out.flags2 = static_cast<uint32_t>(flags >> 32);
  if (completion.max_write != 0) {
    out.max_write = completion.max_write;
    if ((flags & kernel_flag::kMaxPages) != 0)
      out.max_pages = static_cast<uint16_t>((completion.max_write - 1) / kPageSize + 1);
  }
  std::memcpy(body.data(), &out, kStackDepth);
  const uint32_t depth = (flags & kernel_flag::kPassthrough) != 0 ? 1 : 0;
  std::memcpy(body.data() + kStackDepth, &depth, sizeof(depth));
  return true;
}

bool CompleteOpenReply(std::span<std::byte> body, const OpenCompletion& completion) {
  fuse_open_out out;
  if (body.size() < sizeof(out)) return false;
  std::byte* at = body.data() + body.size() - sizeof(out);
  std::memcpy(&out, at, sizeof(out));
  out.open_flags |= completion.flags;
  if (completion.backing_id != 0) {
    out.open_flags |= kOpenPassthrough;
    out.padding = static_cast<uint32_t>(completion.backing_id);  // its name since Linux 6.9 is backing_id
  }
  std::memcpy(at, &out, sizeof(out));
  return true;
}

ReplyCompletion::ReplyCompletion(const InitCompletion& init) : init_(init) { pending = this; }

ReplyCompletion::ReplyCompletion(const OpenCompletion& open) : open_(open) { pending = this; }

ReplyCompletion::~ReplyCompletion() { pending = nullptr; }

void ReplyCompletion::Apply(const iovec* iov, int count) {
  if (pending == nullptr || count != 2 || iov[0].iov_len != sizeof(fuse_out_header)) return;
  fuse_out_header header;
  std::memcpy(&header, iov[0].iov_base, sizeof(header));
  if (header.unique == 0 || header.error != 0) return;  // a notification or an error
  const std::span<std::byte> body(static_cast<std::byte*>(iov[1].iov_base), iov[1].iov_len);
  pending->done_ = pending->init_.has_value() ? CompleteInitReply(body, *pending->init_)
                                              : CompleteOpenReply(body, pending->open_);
}

}  // namespace weightfs
