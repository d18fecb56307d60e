// SPDX-License-Identifier: Apache-2.0
// The options and the answers that the tests of the session share.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "fs/mount_options.h"
#include "tests/unit/fs/fake_kernel.h"

namespace weightfs {

// A close whose release is not served within these delays is that of a copy.
inline constexpr std::chrono::hours kForever{1};

inline MountOptions Options(std::vector<std::string> without = {}) {
  MountOptions options;
  options.release_delay = options.release_wait = kForever;
  options.without = std::move(without);
  options.without.push_back("max_pages_limit");  // independent of this machine's sysctl
  options.write_buffers = ByteCount{8 * kMiB};
  return options;
}

struct Opened {
  uint64_t node = 0, handle = 0;
  uint32_t flags = 0;
};

inline Opened OpenedBy(const KernelReply& reply) {
  const auto open = reply.As<fuse_open_out>();
  return {.handle = open.fh, .flags = open.open_flags};
}

inline Opened CreatedBy(const KernelReply& reply) {
  EXPECT_EQ(reply.error, 0);
  const auto open = reply.As<fuse_open_out>(sizeof(fuse_entry_out));
  return {reply.As<fuse_entry_out>().nodeid, open.fh, open.open_flags};
}

}  // namespace weightfs
