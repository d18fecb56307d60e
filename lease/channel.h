// SPDX-License-Identifier: Apache-2.0
// Sends and receives whole messages of protocol.h, with their descriptors. Both ends use it, and neither trusts the
// other: an incoming message is checked against limits before it is kept, and its sender cannot change it afterwards.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "lease/protocol.h"

namespace weightfs::lease {

// A received message.
struct Message {
  Header header;
  std::unique_ptr<std::byte[]> memory;  // header.body bytes; null if there are none
  std::vector<UniqueFd> descriptors;    // without the body's memfd
  // The process that sent the message and its user at that time, as the kernel attests them; pid 0: not visible to this
  // process. Only sockets of Accept receive it. The process may have ended since.
  ucred sender{.pid = 0, .uid = UINT32_MAX, .gid = UINT32_MAX};

  std::span<const std::byte> body() const { return {memory.get(), header.body}; }
};

// The limits that a receiver accepts.
struct ReceiveLimits {
  uint64_t body = kMaximumBody;  // bytes
  uint32_t descriptors = kMaximumDevices;
};

// The bytes of a value, or of the elements of a vector or span, as a part of a body.
template <typename T>
requires std::is_trivially_copyable_v<T> std::span<const std::byte> Bytes(std::span<const T> values) {
  return std::as_bytes(values);
}
template <typename T>
std::span<const std::byte> Bytes(const std::vector<T>& values) {
  return Bytes(std::span<const T>(values));
}
template <typename T>
requires std::is_trivially_copyable_v<T> std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span<const T>(&value, 1));
}

// Parses a body. Each call returns false, and consumes nothing, if fewer bytes are left than requested.
class BodyReader {
 public:
  explicit BodyReader(std::span<const std::byte> body) : rest_(body) {}

  template <typename T>
  requires std::is_trivially_copyable_v<T>
  bool Take(T* value) {
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return true;
  }
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  bool Take(uint64_t count, std::vector<T>* values) {
    if (rest_.size() / sizeof(T) < count) return false;
    values->resize(count);
    if (count > 0) std::memcpy(values->data(), rest_.data(), count * sizeof(T));
    rest_ = rest_.subspan(count * sizeof(T));
    return true;
  }
  // Fills the given memory completely.
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  bool Take(std::span<T> values) {
    if (rest_.size() < values.size_bytes()) return false;
    if (!values.empty()) std::memcpy(values.data(), rest_.data(), values.size_bytes());
    rest_ = rest_.subspan(values.size_bytes());
    return true;
  }
  // Takes a NUL-terminated text, without its NUL. It is valid as long as the body.
  bool TakeText(std::string_view* text);
  // Takes all remaining bytes as text.
  std::string_view RestAsText();
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

// These functions have no state and are thread-safe, but only one thread at a time may use a socket in one direction.
// Errors are complete messages with the errno of the system call (ECONNREFUSED: no process listens; EAGAIN: a
// non-blocking socket is not ready); kShutdown once the peer has closed the connection; EPROTO for invalid messages and
// for messages beyond the limits.

// Sockets are close-on-exec. `name` is in the abstract namespace, without its leading NUL, or an absolute path. A
// listener, and the sockets it accepts, are non-blocking. A call on a socket of Connect, and Connect itself, fails with
// EAGAIN if it waits for longer than kPatience, because the process that listens may be a stranger, until
// WaitWithoutLimit.
constexpr std::chrono::seconds kPatience{10};
Result<UniqueFd> Listen(std::string_view name, int backlog);
Result<UniqueFd> Accept(int listener);
Result<UniqueFd> Connect(std::string_view name);
Result<void> WaitWithoutLimit(int socket);

// The directories in which a mount's socket may also be, under its name: that of root's mounts first, then that of this
// user's. A program in another network namespace reaches it there.
std::vector<std::string> SocketDirectories();

// Sends `header` (Send sets its `body` and `in_memfd`), the parts of the body in sequence, and copies of the
// descriptors.
Result<void> Send(int socket, Header header, std::span<const std::span<const std::byte>> body,
                  std::span<const int> descriptors);

// Receives the next message. A message that is rejected is discarded and its descriptors are closed.
Result<Message> Receive(int socket, const ReceiveLimits& limits);

}  // namespace weightfs::lease
