// SPDX-License-Identifier: Apache-2.0
#include "lease/channel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <limits>

#include "common/out_of_memory.h"
#include "common/system_calls.h"

namespace weightfs::lease {
namespace {

constexpr size_t kMaximumDescriptors = kMaximumDevices + 1;  // and the body's memfd
constexpr size_t kControlSpace = CMSG_SPACE(kMaximumDescriptors * sizeof(int)) + CMSG_SPACE(sizeof(ucred));
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

Error Failed(std::string_view what, int error) {
  Error failure = SystemError("lease channel", what, error);
  if (error == EPIPE || error == ECONNRESET || error == ENOTCONN) failure.code = ErrorCode::kShutdown;
  return failure;
}

Error Refused(std::string_view why) { return {ErrorCode{EPROTO}, fmt::format("lease channel: {}", why)}; }

struct Address {
  sockaddr_un address{};
  socklen_t size = 0;
};

Result<Address> AddressOf(std::string_view name) {
  Address out;
  if (name.empty() || name.size() > sizeof(out.address.sun_path) - 1) {
    return Refused(
        fmt::format("a socket's name has 1 to {} bytes, not {}", sizeof(out.address.sun_path) - 1, name.size()));
  }
  out.address.sun_family = AF_UNIX;
  const bool path = name.front() == '/';
  // A name in the abstract namespace follows a NUL, a path is followed by one.
  std::memcpy(out.address.sun_path + (path ? 0 : 1), name.data(), name.size());
  out.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return out;
}

// Writes the parts to a memfd and seals it against changes.
Result<UniqueFd> SealedBody(std::span<const std::span<const std::byte>> body) {
  UniqueFd file(memfd_create("weightfs-lease", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return Failed("memfd_create", errno);
  uint64_t at = 0;
  for (const std::span<const std::byte> piece : body) {
    if (!WriteFully(file.get(), piece, at)) return Failed("writing the body of a message", errno);
    at += piece.size();
  }
  if (fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) return Failed("sealing the body of a message", errno);
  return file;
}

// Reads a body that its sender can no longer change. Only a memfd has seals, so reading never blocks.
Result<void> ReadSealed(int file, std::span<std::byte> out) {
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return Refused("the body of a message is in no sealed memory");
  struct stat status = {};
  if (fstat(file, &status) != 0) return Failed("fstat of the body of a message", errno);
  if (static_cast<uint64_t>(status.st_size) != out.size()) {
    return Refused(fmt::format("the body of a message has {} bytes, its header says {}", status.st_size, out.size()));
  }
  const ssize_t got = ReadFully(file, out, 0);
  if (got != std::ssize(out)) return Failed("reading the body of a message", got < 0 ? errno : EIO);
  return {};
}

void PutControl(cmsghdr* entry, int type, std::span<const std::byte> data) {
  entry->cmsg_level = SOL_SOCKET;
  entry->cmsg_type = type;
  entry->cmsg_len = CMSG_LEN(data.size());
  std::memcpy(CMSG_DATA(entry), data.data(), data.size());
}

Result<void> SetTimeouts(int socket, std::chrono::seconds limit) {
  const timeval time{.tv_sec = limit.count(), .tv_usec = 0};
  for (const int option : {SO_SNDTIMEO, SO_RCVTIMEO}) {
    if (setsockopt(socket, SOL_SOCKET, option, &time, sizeof(time)) != 0) return Failed("setsockopt", errno);
  }
  return {};
}

// Takes ownership of every descriptor that came with a message, and copies its sender.
std::vector<UniqueFd> TakeControl(msghdr& message, ucred* sender) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&message); entry != nullptr; entry = CMSG_NXTHDR(&message, entry)) {
    if (entry->cmsg_level != SOL_SOCKET) continue;
    if (entry->cmsg_type == SCM_CREDENTIALS) std::memcpy(sender, CMSG_DATA(entry), sizeof(*sender));
    if (entry->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t index = 0; index < count; ++index) {
      int value = -1;
      std::memcpy(&value, CMSG_DATA(entry) + index * sizeof(int), sizeof(int));
      descriptors.emplace_back(value);
    }
  }
  return descriptors;
}

// Checks that the header matches the received data, and that both are within the limits.
Result<void> Check(const Header& header, uint64_t inline_bytes, size_t descriptors, const ReceiveLimits& limits) {
  if (header.version != kProtocolVersion) {
    return Refused(fmt::format("a message of version {}; this side speaks {}", header.version, kProtocolVersion));
  }
  if (header.body > std::min(limits.body, kMaximumBody)) {
    return Refused(
        fmt::format("a message of {} bytes; at most {} are taken", header.body, std::min(limits.body, kMaximumBody)));
  }
  if (header.in_memfd > 1 || inline_bytes != (header.in_memfd != 0 ? 0 : header.body)) {
    return Refused(fmt::format("a message whose header says {} bytes came with {}", header.body, inline_bytes));
  }
  if (descriptors < header.in_memfd || descriptors - header.in_memfd > limits.descriptors) {
    return Refused(fmt::format("a message with {} descriptors", descriptors));
  }
  return {};
}

}  // namespace

bool BodyReader::TakeText(std::string_view* text) {
  const auto end = std::find(rest_.begin(), rest_.end(), std::byte{0});
  if (end == rest_.end()) return false;
  const auto size = static_cast<size_t>(end - rest_.begin());
  *text = {reinterpret_cast<const char*>(rest_.data()), size};
  rest_ = rest_.subspan(size + 1);
  return true;
}

std::string_view BodyReader::RestAsText() {
  const auto rest = std::exchange(rest_, {});
  return {reinterpret_cast<const char*>(rest.data()), rest.size()};
}

std::vector<std::string> SocketDirectories() {
  std::vector<std::string> directories{"/run/weightfs"};
  const char* own = std::getenv("XDG_RUNTIME_DIR");
  if (own != nullptr && *own == '/') directories.push_back(fmt::format("{}/weightfs", own));
  return directories;
}

Result<UniqueFd> Listen(std::string_view name, int backlog) {
  ASSIGN_OR_RETURN(const Address address, AddressOf(name));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return Failed("socket", errno);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.address), address.size) != 0) {
    return Failed("bind", errno);
  }
  if (listen(socket.get(), backlog) != 0) return Failed("listen", errno);
  return socket;
}

Result<UniqueFd> Accept(int listener) {
  constexpr int kFlags = SOCK_CLOEXEC | SOCK_NONBLOCK, kOn = 1;
  UniqueFd socket(RepeatInterrupted([&] { return accept4(listener, nullptr, nullptr, kFlags); }));
  if (!socket) return Failed("accept", errno);
  if (setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &kOn, sizeof(kOn)) != 0) return Failed("setsockopt", errno);
  return socket;
}

Result<UniqueFd> Connect(std::string_view name) {
  ASSIGN_OR_RETURN(const Address address, AddressOf(name));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return Failed("socket", errno);
  RETURN_IF_ERROR(SetTimeouts(socket.get(), kPatience));
  const auto* where = reinterpret_cast<const sockaddr*>(&address.address);
  const int connected = RepeatInterrupted([&] { return connect(socket.get(), where, address.size); });
  if (connected != 0) return Failed("connect", errno);
  return socket;
}

Result<void> WaitWithoutLimit(int socket) { return SetTimeouts(socket, std::chrono::seconds(0)); }

Result<void> Send(int socket, Header header, std::span<const std::span<const std::byte>> body,
                  std::span<const int> descriptors) {
  header.body = 0;
  for (const auto& piece : body) header.body += piece.size();
  header.in_memfd = header.body > kInlineBody ? 1 : 0;
  if (header.body > kMaximumBody || descriptors.size() > kMaximumDevices) {
    return Refused(
        fmt::format("a message of {} bytes with {} descriptors is too large to send", header.body, descriptors.size()));
  }
  UniqueFd file;
  std::vector<int> passed;
  std::vector<iovec> pieces = {{&header, sizeof(header)}};
  if (header.in_memfd != 0) {
    ASSIGN_OR_RETURN(file, SealedBody(body));
    passed.push_back(file.get());
  } else {
    for (const auto& piece : body) pieces.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  }
  passed.insert(passed.end(), descriptors.begin(), descriptors.end());

  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  alignas(cmsghdr) std::byte control[kControlSpace] = {};
  const ucred sender{.pid = getpid(), .uid = geteuid(), .gid = getegid()};
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(sizeof(sender));
  PutControl(CMSG_FIRSTHDR(&message), SCM_CREDENTIALS, BytesOf(sender));
  if (!passed.empty()) {
    message.msg_controllen += CMSG_SPACE(passed.size() * sizeof(int));
    PutControl(CMSG_NXTHDR(&message, CMSG_FIRSTHDR(&message)), SCM_RIGHTS, Bytes(passed));
  }
  // Sends all or nothing.
  const ssize_t sent = RepeatInterrupted([&] { return sendmsg(socket, &message, MSG_NOSIGNAL); });
  if (sent < 0) return Failed("sending", errno);
  return {};
}

Result<Message> Receive(int socket, const ReceiveLimits& limits) {
  Message out;
  std::unique_ptr<std::byte[]> memory;
  const auto allocate = [&memory](uint64_t size) {
    return TryAllocate([&] { memory.reset(new std::byte[size]); });
  };
  if (!allocate(kInlineBody)) return Failed("memory for a message", ENOMEM);
  iovec pieces[] = {{&out.header, sizeof(out.header)}, {memory.get(), kInlineBody}};
  alignas(cmsghdr) std::byte control[kControlSpace];
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = RepeatInterrupted([&] { return recvmsg(socket, &message, MSG_CMSG_CLOEXEC); });
  if (got < 0) return Failed("receiving", errno);
  out.descriptors = TakeControl(message, &out.sender);
  if (got == 0) return Error{ErrorCode::kShutdown, "lease channel: the other side has ended the connection"};
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return Refused("a message lost descriptors on its way; is the limit of open files too low?");
  }
  if ((message.msg_flags & MSG_TRUNC) != 0 || static_cast<size_t>(got) < sizeof(Header)) {
    return Refused("a message that is no header and body");
  }
  RETURN_IF_ERROR(Check(out.header, static_cast<uint64_t>(got) - sizeof(Header), out.descriptors.size(), limits));
  if (out.header.in_memfd != 0) {
    if (!allocate(out.header.body)) return Failed("memory for the body of a message", ENOMEM);
    RETURN_IF_ERROR(ReadSealed(out.descriptors.front().get(), {memory.get(), out.header.body}));
    out.descriptors.erase(out.descriptors.begin());
  }
  if (out.header.body > 0) out.memory = std::move(memory);
  return out;
}

}  // namespace weightfs::lease
