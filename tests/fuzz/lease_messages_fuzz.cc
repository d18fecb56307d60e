// SPDX-License-Identifier: Apache-2.0
// Messages of the lease channel, as a hostile peer may send them. An input has a byte of flags, the limit of the body
// (three bytes), and a message (header and body).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "client/lease/leased_blocks.h"
#include "common/assert.h"
#include "common/bytes.h"
#include "lease/channel.h"
#include "tests/fuzz/fuzz.h"

namespace weightfs {
namespace {

constexpr unsigned kRepaired = 1, kInMemfd = 2, kUnsealed = 4, kDescriptorsShift = 3;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
constexpr uint64_t kMostBlocks = 1 << 16;
constexpr uint64_t kProbes = 64;

UniqueFd MemoryWith(std::string_view bytes, bool sealed) {
  UniqueFd file(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  WEIGHTFS_ASSERT(file && write(file.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  if (sealed) WEIGHTFS_ASSERT(fcntl(file.get(), F_ADD_SEALS, kSeals) == 0);
  return file;
}

void SendRaw(int socket, std::string_view bytes, const std::vector<int>& descriptors) {
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(64 * sizeof(int))> control{};
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* entry = CMSG_FIRSTHDR(&message);
    entry->cmsg_level = SOL_SOCKET;
    entry->cmsg_type = SCM_RIGHTS;
    entry->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(entry), descriptors.data(), descriptors.size() * sizeof(int));
  }
  WEIGHTFS_ASSERT(sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

// The extents of an answer, which the client takes from a mount that it does not trust.
void CheckExtents(lease::BodyReader body, std::vector<UniqueFd> devices) {
  lease::ReadAnswer answer;
  std::vector<lease::Extent> extents;
  if (!body.Take(&answer) || !body.Take(answer.extents, &extents)) return;
  const uint64_t first = answer.first_block % (uint64_t{1} << 51), count = answer.blocks % kMostBlocks + 1;
  client::LeasedBlocks blocks;
  WEIGHTFS_ASSERT(blocks.Reset(first, count).has_value());
  blocks.Adopt(std::move(devices));
  if (!blocks.Add(extents, answer.file_size).has_value()) return;
  uint64_t at = first * lease::kBlock;
  const uint64_t end = (first + count) * lease::kBlock;
  for (uint64_t probe = 0; at < end && probe < kProbes; ++probe) {
    const auto run = blocks.Locate(at, end - at);
    WEIGHTFS_ASSERT(run.length >= 1 && run.length <= end - at);
    at += run.length;
  }
}

// Every accepted message is within the limits and is the one that was sent.
void CheckMessage(lease::Message message, const lease::ReceiveLimits& limits, std::string_view sent) {
  WEIGHTFS_ASSERT(message.header.version == lease::kProtocolVersion);
  WEIGHTFS_ASSERT(message.header.body <= limits.body && message.descriptors.size() <= limits.descriptors);
  WEIGHTFS_ASSERT(message.body().size() == sent.size());
  WEIGHTFS_ASSERT(sent.empty() || std::memcmp(message.body().data(), sent.data(), sent.size()) == 0);
  lease::BodyReader texts(message.body());
  size_t read = 0;
  for (std::string_view text; texts.TakeText(&text); read += text.size() + 1) {
    WEIGHTFS_ASSERT(text == sent.substr(read, text.size()) && sent[read + text.size()] == '\0');
  }
  WEIGHTFS_ASSERT(texts.RestAsText() == sent.substr(read) && texts.empty());
  CheckExtents(lease::BodyReader(message.body()), std::move(message.descriptors));
}

int LowestFree() {
  const int descriptor = dup(STDERR_FILENO);
  WEIGHTFS_ASSERT(descriptor >= 0);
  close(descriptor);
  return descriptor;
}

struct Sockets {
  Sockets() {
    int ends[2];
    WEIGHTFS_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    near = UniqueFd(ends[0]);
    far = UniqueFd(ends[1]);
  }
  UniqueFd near, far;
};

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  lease::Header header{.kind = static_cast<uint32_t>(lease::Kind::kRead)};
  const lease::ReadAnswer answer{.file_size = 0, .first_block = 2, .blocks = 9, .extents = 2};
  const std::array<lease::Extent, 2> extents = {{{2, 3, 100, 0, 0}, {7, 4, 900, 1, 0}}};
  std::string body(reinterpret_cast<const char*>(&answer), sizeof(answer));
  body.append(reinterpret_cast<const char*>(extents.data()), sizeof(extents));
  const auto with_flags = [&](unsigned flags, std::string_view content) {
    std::string seed = static_cast<char>(flags) + std::string("\0\0\1", 3);
    header.body = content.size();
    header.in_memfd = (flags & kInMemfd) != 0 ? 1 : 0;
    seed.append(reinterpret_cast<const char*>(&header), sizeof(header));
    return seed.append(content);
  };
  constexpr unsigned kTwo = 2 << kDescriptorsShift;
  return {with_flags(kRepaired | kTwo, body),
          with_flags(kRepaired | kTwo | kInMemfd, body),
          with_flags(kTwo, body),
          with_flags(kInMemfd | kUnsealed, body),
          with_flags(kRepaired, std::string("one\0two\0three", 13)),
          with_flags(0, "")};
}

}  // namespace weightfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightfs;
  static const Sockets sockets;
  Decoder input(fuzz::Text(data, size));
  const unsigned flags = input.Little<uint8_t>();
  const uint64_t limit = input.Little<uint16_t>() | uint64_t{input.Little<uint8_t>()} << 16;
  std::string message(input.rest());
  if (message.empty()) return 0;
  const std::string body = message.size() > sizeof(lease::Header) ? message.substr(sizeof(lease::Header)) : "";
  const bool in_memory = (flags & kInMemfd) != 0;
  if ((flags & kRepaired) != 0 && message.size() >= sizeof(lease::Header)) {
    fuzz::Put(message, offsetof(lease::Header, version), lease::kProtocolVersion);
    fuzz::Put(message, offsetof(lease::Header, in_memfd), uint32_t{in_memory});
    fuzz::Put(message, offsetof(lease::Header, body), uint64_t{body.size()});
  }
  const int free_before = LowestFree();
  {
    std::vector<UniqueFd> files;
    if (in_memory) {
      files.push_back(MemoryWith(body, (flags & kUnsealed) == 0));
      message.resize(std::min(message.size(), sizeof(lease::Header)));
    }
    for (unsigned i = 0; i < (flags >> kDescriptorsShift & 7); ++i) files.push_back(MemoryWith("", false));
    std::vector<int> descriptors;
    for (const UniqueFd& file : files) descriptors.push_back(file.get());
    SendRaw(sockets.near.get(), message, descriptors);
  }
  const lease::ReceiveLimits limits{.body = limit, .descriptors = 4};
  auto received = lease::Receive(sockets.far.get(), limits);
  if (received.has_value()) {
    const bool is_body = !in_memory || received->header.in_memfd != 0;
    CheckMessage(std::move(*received), limits, is_body ? std::string_view(body) : std::string_view());
  } else {
    WEIGHTFS_ASSERT(received.error().code == ErrorCode{EPROTO} && !received.error().what.empty());
  }
  WEIGHTFS_ASSERT(LowestFree() == free_before);
  return 0;
}
