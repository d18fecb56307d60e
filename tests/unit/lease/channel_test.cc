// SPDX-License-Identifier: Apache-2.0
// The channel of leases: whole messages with bodies and descriptors, and attacks by a hostile peer.
#include "lease/channel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

namespace weightfs::lease {
namespace {

constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

class ChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    near_ = UniqueFd(ends[0]);
    far_ = UniqueFd(ends[1]);
    open_before_ = OpenDescriptors();
  }
  void TearDown() override { EXPECT_EQ(OpenDescriptors(), open_before_) << "descriptors leaked"; }

  static size_t OpenDescriptors() {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
  }

  // Sends a message as a hostile peer may build it.
  void SendRaw(std::span<const std::byte> bytes, std::span<const int> descriptors) {
    iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::byte control[CMSG_SPACE(253 * sizeof(int))] = {};
    if (!descriptors.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
      cmsghdr* entry = CMSG_FIRSTHDR(&message);
      entry->cmsg_level = SOL_SOCKET;
      entry->cmsg_type = SCM_RIGHTS;
      entry->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(entry), descriptors.data(), descriptors.size() * sizeof(int));
    }
    ASSERT_EQ(sendmsg(near_.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void SendHeader(const Header& header, std::span<const int> descriptors) { SendRaw(BytesOf(header), descriptors); }

  void ExpectRefused(const ReceiveLimits& limits = {}) {
    const auto message = Receive(far_.get(), limits);
    ASSERT_FALSE(message.has_value());
    EXPECT_EQ(message.error().code, ErrorCode{EPROTO}) << ToString(message.error());
  }

  static UniqueFd MemoryFile(uint64_t size, int seals) {
    UniqueFd file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(size)), 0);
    EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return file;
  }

  UniqueFd near_, far_;
  size_t open_before_ = 0;
};

Header HeaderOf(Kind kind) {
  Header header;
  header.kind = static_cast<uint32_t>(kind);
  return header;
}

TEST_F(ChannelTest, AMessageArrivesWholeWithItsBodyInPieces) {
  const CommitRequest request{.file_offset = 8192, .length = 5000, .new_size = kToEnd};
  const std::vector<uint32_t> checksums = {7, 9};
  const std::vector<std::span<const std::byte>> body = {BytesOf(request), Bytes(checksums)};
  ASSERT_TRUE(Send(near_.get(), HeaderOf(Kind::kCommit), body, {}).has_value());
  auto message = Receive(far_.get(), {});
  ASSERT_TRUE(message.has_value()) << ToString(message.error());
  EXPECT_EQ(message->header.kind, static_cast<uint32_t>(Kind::kCommit));
  EXPECT_EQ(message->header.in_memfd, 0u);
  BodyReader reader(message->body());
  CommitRequest got;
  std::vector<uint32_t> sums;
  ASSERT_TRUE(reader.Take(&got));
  ASSERT_TRUE(reader.Take(2, &sums));
  EXPECT_TRUE(reader.empty());
  EXPECT_EQ(got.file_offset, 8192u);
  EXPECT_EQ(got.new_size, kToEnd);
  EXPECT_EQ(sums, checksums);
  EXPECT_FALSE(reader.Take(&got)) << "nothing is left";
}

TEST_F(ChannelTest, AnAcceptedSocketKnowsTheSenderOfEachMessage) {
  const std::string name = fmt::format("weightfs-test-{}", getpid());
  const auto listener = Listen(name, 1);
  ASSERT_TRUE(listener.has_value());
  const auto client = Connect(name);
  ASSERT_TRUE(client.has_value());
  // Even before the connection is accepted, and from a process that has inherited the socket.
  ASSERT_TRUE(Send(client->get(), HeaderOf(Kind::kRelease), {}, {}).has_value());
  const pid_t child = fork();
  if (child == 0) _exit(Send(client->get(), HeaderOf(Kind::kIdentify), {}, {}).has_value() ? 0 : 1);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const auto server = Accept(listener->get());
  ASSERT_TRUE(server.has_value());
  const auto own = Receive(server->get(), {}), inherited = Receive(server->get(), {});
  ASSERT_TRUE(own.has_value() && inherited.has_value());
  EXPECT_EQ(own->sender.pid, getpid());
  EXPECT_EQ(own->sender.uid, geteuid());
  EXPECT_EQ(inherited->sender.pid, child);
  // Nobody attests the sender of an answer.
  ASSERT_TRUE(Send(server->get(), HeaderOf(Kind::kRelease), {}, {}).has_value());
  const auto answer = Receive(client->get(), {});
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->sender.pid, 0);
}

TEST_F(ChannelTest, ALargeBodyTravelsInAMemfd) {
  std::vector<uint32_t> numbers(1 << 20);
  for (size_t index = 0; index < numbers.size(); ++index) numbers[index] = static_cast<uint32_t>(index * 2654435761u);
  const std::vector<std::span<const std::byte>> body = {Bytes(numbers)};
  ASSERT_TRUE(Send(near_.get(), HeaderOf(Kind::kRead), body, {}).has_value());
  auto message = Receive(far_.get(), {});
  ASSERT_TRUE(message.has_value()) << ToString(message.error());
  EXPECT_EQ(message->header.in_memfd, 1u);
  EXPECT_TRUE(message->descriptors.empty()) << "the body's descriptor is not the caller's";
  std::vector<uint32_t> got;
  BodyReader reader(message->body());
  ASSERT_TRUE(reader.Take(numbers.size(), &got));
  EXPECT_EQ(got, numbers);
}

TEST_F(ChannelTest, TheLargestInlineBodyAndTheSmallestOther) {
  for (const uint64_t size : {kInlineBody, kInlineBody + 1}) {
    const std::vector<std::byte> bytes(size, std::byte{3});
    const std::vector<std::span<const std::byte>> body = {bytes};
    ASSERT_TRUE(Send(near_.get(), HeaderOf(Kind::kRead), body, {}).has_value());
    auto message = Receive(far_.get(), {});
    ASSERT_TRUE(message.has_value()) << ToString(message.error());
    EXPECT_EQ(message->header.in_memfd, size == kInlineBody ? 0u : 1u);
    EXPECT_TRUE(std::ranges::equal(message->body(), bytes));
  }
}

TEST_F(ChannelTest, DescriptorsArriveInOrderAndCloseOnExec) {
  const UniqueFd first = MemoryFile(1, 0), second = MemoryFile(2, 0);
  const int passed[] = {first.get(), second.get()};
  for (const size_t size : {size_t{0}, size_t{100'000}}) {
    const std::vector<std::byte> bytes(size);
    const std::vector<std::span<const std::byte>> body = {bytes};
    ASSERT_TRUE(Send(near_.get(), HeaderOf(Kind::kRead), body, passed).has_value());
    auto message = Receive(far_.get(), {});
    ASSERT_TRUE(message.has_value()) << ToString(message.error());
    ASSERT_EQ(message->descriptors.size(), 2u);
    for (off_t index = 0; index < 2; ++index) {
      const int descriptor = message->descriptors[static_cast<size_t>(index)].get();
      struct stat status = {};
      ASSERT_EQ(fstat(descriptor, &status), 0);
      EXPECT_EQ(status.st_size, index + 1);
      EXPECT_EQ(fcntl(descriptor, F_GETFD), FD_CLOEXEC);
    }
  }
}

TEST_F(ChannelTest, NoMessageAndTheEndAreDistinguished) {
  EXPECT_EQ(Receive(far_.get(), {}).error().code, ErrorCode::kAgain);
  near_ = {};
  --open_before_;
  EXPECT_EQ(Receive(far_.get(), {}).error().code, ErrorCode::kShutdown);
  EXPECT_EQ(Send(far_.get(), HeaderOf(Kind::kRead), {}, {}).error().code, ErrorCode::kShutdown);
}

TEST_F(ChannelTest, APeerThatReadsNothingIsNotReady) {
  const std::vector<std::byte> bytes(kInlineBody);
  const std::vector<std::span<const std::byte>> body = {bytes};
  Result<void> sent;
  for (int count = 0; count < 1000 && sent; ++count) sent = Send(near_.get(), HeaderOf(Kind::kRead), body, {});
  ASSERT_FALSE(sent.has_value());
  EXPECT_EQ(sent.error().code, ErrorCode::kAgain);
}

TEST_F(ChannelTest, GarbageIsRefusedAndTheNextMessageArrives) {
  const std::vector<std::byte> garbage(1000, std::byte{0xff});
  SendRaw(garbage, {});
  ExpectRefused();
  SendRaw(std::span(garbage).first(3), {});
  ExpectRefused();
  SendRaw(std::vector<std::byte>(sizeof(Header) + kInlineBody + 1), {});
  ExpectRefused();
  ASSERT_TRUE(Send(near_.get(), HeaderOf(Kind::kRelease), {}, {}).has_value());
  EXPECT_TRUE(Receive(far_.get(), {}).has_value());
}

TEST_F(ChannelTest, AnInconsistentHeaderIsRefused) {
  Header header = HeaderOf(Kind::kRead);
  header.body = 1;
  SendHeader(header, {});
  ExpectRefused();
  header.body = UINT64_MAX;
  SendHeader(header, {});
  ExpectRefused();
  header = HeaderOf(Kind::kRead);
  header.version = kProtocolVersion + 1;
  SendHeader(header, {});
  ExpectRefused();
  header = HeaderOf(Kind::kRead);
  header.in_memfd = 1;
  header.body = 10;
  SendHeader(header, {});
  ExpectRefused();
  header.in_memfd = 2;
  SendHeader(header, {});
  ExpectRefused();
}

TEST_F(ChannelTest, ABodyThatItsSenderCouldChangeIsRefused) {
  Header header = HeaderOf(Kind::kRead);
  header.in_memfd = 1;
  header.body = 100'000;
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_WRITE}) {
    const UniqueFd file = MemoryFile(100'000, seals);
    SendHeader(header, std::array{file.get()});
    ExpectRefused();
  }
  const UniqueFd sealed = MemoryFile(100'000, kAllSeals);
  SendHeader(header, std::array{sealed.get()});
  EXPECT_TRUE(Receive(far_.get(), {}).has_value());
}

TEST_F(ChannelTest, ABodyOfAnotherSizeOrInNoMemoryIsRefused) {
  Header header = HeaderOf(Kind::kRead);
  header.in_memfd = 1;
  header.body = 100'000;
  for (const uint64_t size : {uint64_t{0}, uint64_t{99'999}, uint64_t{100'001}, uint64_t{1} << 50}) {
    const UniqueFd file = MemoryFile(size, kAllSeals);
    SendHeader(header, std::array{file.get()});
    ExpectRefused();
  }
  // Nothing writes to this pipe, so reading it would block forever.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reads(ends[0]), writes(ends[1]);
  SendHeader(header, std::array{reads.get()});
  ExpectRefused();
  const UniqueFd null(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  SendHeader(header, std::array{null.get()});
  ExpectRefused();
}

TEST_F(ChannelTest, TheReceiversLimitsHold) {
  const std::vector<std::byte> bytes(100'000);
  const std::vector<std::span<const std::byte>> body = {bytes};
  ASSERT_TRUE(Send(near_.get(), HeaderOf(Kind::kRead), body, {}).has_value());
  ExpectRefused({.body = 99'999});
  const int passed[] = {near_.get()};
  ASSERT_TRUE(Send(near_.get(), HeaderOf(Kind::kRead), {}, passed).has_value());
  ExpectRefused({.descriptors = 0});
  // More descriptors than any message has: the kernel closes those that do not fit.
  const std::vector<int> many(200, near_.get());
  SendHeader(HeaderOf(Kind::kRead), many);
  ExpectRefused();
}

TEST_F(ChannelTest, AMessageTooLargeToSendIsRefusedBeforeItIsBuilt) {
  const std::vector<int> many(kMaximumDevices + 1, near_.get());
  EXPECT_EQ(Send(near_.get(), HeaderOf(Kind::kRead), {}, many).error().code, ErrorCode{EPROTO});
  EXPECT_EQ(Receive(far_.get(), {}).error().code, ErrorCode::kAgain);
}

TEST_F(ChannelTest, AListenerIsFoundByItsName) {
  const std::string name = fmt::format("weightfs-channel-test-{}", getpid());
  EXPECT_EQ(Connect(name).error().code, ErrorCode{ECONNREFUSED});
  {
    auto listener = Listen(name, 4);
    ASSERT_TRUE(listener.has_value()) << ToString(listener.error());
    EXPECT_EQ(Accept(listener->get()).error().code, ErrorCode::kAgain);
    auto client = Connect(name);
    ASSERT_TRUE(client.has_value()) << ToString(client.error());
    auto server = Accept(listener->get());
    ASSERT_TRUE(server.has_value()) << ToString(server.error());
    ASSERT_TRUE(Send(client->get(), HeaderOf(Kind::kRelease), {}, {}).has_value());
    EXPECT_TRUE(Receive(server->get(), {}).has_value());
    EXPECT_FALSE(Listen(name, 4).has_value()) << "the name is taken";
  }
  EXPECT_EQ(Connect(std::string(200, 'x')).error().code, ErrorCode{EPROTO});
  EXPECT_EQ(Connect("").error().code, ErrorCode{EPROTO});
}

TEST(BodyReaderTest, TextsEndWithANul) {
  const char bytes[] = "one\0two\0rest";
  BodyReader reader(std::as_bytes(std::span(bytes, sizeof(bytes) - 1)));
  std::string_view text;
  ASSERT_TRUE(reader.TakeText(&text));
  EXPECT_EQ(text, "one");
  ASSERT_TRUE(reader.TakeText(&text));
  EXPECT_EQ(text, "two");
  EXPECT_FALSE(reader.TakeText(&text)) << "no NUL any more";
  EXPECT_EQ(reader.RestAsText(), "rest");
  EXPECT_TRUE(reader.empty());
}

TEST(BodyReaderTest, ACountThatCannotBeIsNotAllocated) {
  const std::vector<std::byte> bytes(64);
  BodyReader reader(bytes);
  std::vector<Extent> extents;
  EXPECT_FALSE(reader.Take(UINT64_MAX / sizeof(Extent) + 3, &extents));
  EXPECT_FALSE(reader.Take(3, &extents));
  EXPECT_TRUE(reader.Take(2, &extents));
}

}  // namespace
}  // namespace weightfs::lease
