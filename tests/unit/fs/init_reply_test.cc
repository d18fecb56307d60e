// SPDX-License-Identifier: Apache-2.0
// Replies as bytes: which fields are filled in, and which stay unchanged.
#include "fs/init_reply.h"

#include <gtest/gtest.h>
#include <linux/fuse.h>

#include <cstring>
#include <thread>
#include <vector>

#include "common/units.h"
#include "fs/kernel_features.h"

namespace weightfs {
namespace {

template <typename T>
std::vector<std::byte> BytesOf(const T& value) {
  std::vector<std::byte> bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

template <typename T>
T From(const std::vector<std::byte>& bytes, size_t at = 0) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

fuse_init_out LibfuseAnswer() {
  fuse_init_out out{};
  out.major = 7;
  out.minor = 38;
  out.flags = FUSE_ASYNC_READ | FUSE_MAX_PAGES;
  out.max_write = kMiB;
  out.max_pages = 256;
  out.max_background = 128;
  return out;
}

TEST(CompleteInitReply, GrantsMappingsOfDirectIoAndSaysThatTheSecondWordIsThere) {
  auto body = BytesOf(LibfuseAnswer());
  ASSERT_TRUE(CompleteInitReply(body, {.flags = kernel_flag::kDirectIoAllowMmap}));
  const auto out = From<fuse_init_out>(body);
  EXPECT_EQ(out.flags, FUSE_ASYNC_READ | FUSE_MAX_PAGES | FUSE_INIT_EXT);
  EXPECT_EQ(out.flags2, 1U << 4);
  EXPECT_EQ(out.max_write, kMiB);
  EXPECT_EQ(out.max_background, 128);
}

TEST(CompleteInitReply, LetsPassthroughReadOneFilesystemBelow) {
  const auto depth = [](uint64_t flags) {
    auto body = BytesOf(LibfuseAnswer());
    EXPECT_TRUE(CompleteInitReply(body, {.flags = flags}));
    return From<uint32_t>(body, offsetof(fuse_init_out, flags2) + sizeof(uint32_t));
  };
  EXPECT_EQ(depth(kernel_flag::kPassthrough), 1U);
  EXPECT_EQ(depth(kernel_flag::kDirectIoAllowMmap), 0U);
}

TEST(CompleteInitReply, RaisesWriteSizeAndPagesTogether) {
  auto body = BytesOf(LibfuseAnswer());
  ASSERT_TRUE(CompleteInitReply(body, {.max_write = 4 * kMiB}));
  const auto out = From<fuse_init_out>(body);
  EXPECT_EQ(out.max_write, 4 * kMiB);
  EXPECT_EQ(out.max_pages, 1024);
  EXPECT_EQ(out.flags, FUSE_ASYNC_READ | FUSE_MAX_PAGES);
  EXPECT_EQ(out.flags2, 0U);
}

TEST(CompleteInitReply, LeavesPagesAloneWhereTheKernelDoesNotKnowThem) {
  fuse_init_out answer = LibfuseAnswer();
  answer.flags = FUSE_ASYNC_READ;
  answer.max_pages = 0;
  auto body = BytesOf(answer);
  ASSERT_TRUE(CompleteInitReply(body, {.max_write = 128 * kKiB}));
  EXPECT_EQ(From<fuse_init_out>(body).max_pages, 0);
}

TEST(CompleteInitReply, RefusesTheShortAnswerOfAnOldProtocol) {
  std::vector<std::byte> body(24, std::byte{7});
  EXPECT_FALSE(CompleteInitReply(body, {.flags = kernel_flag::kDirectIoAllowMmap}));
  EXPECT_EQ(body, std::vector<std::byte>(24, std::byte{7}));
}

TEST(CompleteOpenReply, AddsFlagsAtTheEndOfOpenAndCreateAnswers) {
  fuse_open_out open{};
  open.fh = 77;
  open.open_flags = FOPEN_DIRECT_IO;
  auto body = BytesOf(open);
  ASSERT_TRUE(CompleteOpenReply(body, {.flags = kOpenParallelDirectWrites}));
  EXPECT_EQ(From<fuse_open_out>(body).open_flags, uint32_t{FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES});
  EXPECT_EQ(From<fuse_open_out>(body).fh, 77U);

  std::vector<std::byte> created = BytesOf(fuse_entry_out{});
  const auto tail = BytesOf(open);
  created.insert(created.end(), tail.begin(), tail.end());
  ASSERT_TRUE(CompleteOpenReply(created, {.flags = kOpenParallelDirectWrites}));
  EXPECT_EQ(From<fuse_open_out>(created, sizeof(fuse_entry_out)).open_flags,
            uint32_t{FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES});
  EXPECT_EQ(From<fuse_entry_out>(created).nodeid, 0U);

  std::vector<std::byte> shorter(15);
  EXPECT_FALSE(CompleteOpenReply(shorter, {}));
}

TEST(CompleteOpenReply, NamesTheMemoryThatTheKernelReadsItself) {
  auto body = BytesOf(fuse_open_out{.fh = 77, .open_flags = FOPEN_NOFLUSH, .padding = 0});
  ASSERT_TRUE(CompleteOpenReply(body, {.backing_id = 5}));
  EXPECT_EQ(From<fuse_open_out>(body).open_flags, FOPEN_NOFLUSH | 1U << 7);
  EXPECT_EQ(From<fuse_open_out>(body).padding, 5U);
}

struct Captured {
  fuse_out_header header{};
  fuse_open_out open{};
  bool Apply() {
    const iovec iov[2] = {{&header, sizeof(header)}, {&open, sizeof(open)}};
    ReplyCompletion::Apply(iov, 2);
    return open.open_flags != 0;
  }
};

TEST(ReplyCompletion, ChangesRepliesOnlyWhileItLivesAndOnItsThread) {
  Captured reply;
  reply.header.unique = 2;
  EXPECT_FALSE(reply.Apply());
  {
    ReplyCompletion completion(OpenCompletion{.flags = kOpenParallelDirectWrites});
    std::thread([&] { EXPECT_FALSE(reply.Apply()) << "another thread's reply"; }).join();
    EXPECT_FALSE(completion.done());
    EXPECT_TRUE(reply.Apply());
    EXPECT_TRUE(completion.done());
  }
  reply.open.open_flags = 0;
  EXPECT_FALSE(reply.Apply());
}

TEST(ReplyCompletion, LeavesErrorsAndNotificationsAlone) {
  ReplyCompletion completion(OpenCompletion{.flags = kOpenParallelDirectWrites});
  Captured error;
  error.header.unique = 2;
  error.header.error = -5;
  EXPECT_FALSE(error.Apply());
  Captured notification;
  EXPECT_FALSE(notification.Apply());
  EXPECT_FALSE(completion.done());
}

}  // namespace
}  // namespace weightfs
