// SPDX-License-Identifier: Apache-2.0
// Messages of protocol.h on their way: sent and received whole, with their descriptors. Both ends use it; neither
// trusts the other: whatever arrives is bounded before it is kept, and its sender can change none of it afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "lease/protocol.h"

namespace weightfs::lease {

// A message as it arrived.
struct Message {
  Header header;
  std::unique_ptr<std::byte[]> memory;  // header.body bytes; null where there are none
  std::vector<UniqueFd> descriptors;    // without that of the body

  std::span<const std::byte> body() const { return {memory.get(), header.body}; }
};

// What a receiver takes.
struct ReceiveLimits {
  uint64_t body = kMaximumBody;  // bytes
  uint32_t descriptors = kMaximumDevices;
};

// The bytes of a value, or of the elements of a vector or span, as a piece of a body.
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

// Takes a body apart. Each call is false, and takes nothing, where there is less than it asks for.
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
  // Into memory that is there; all of it.
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  bool Take(std::span<T> values) {
    if (rest_.size() < values.size_bytes()) return false;
    if (!values.empty()) std::memcpy(values.data(), rest_.data(), values.size_bytes());
    rest_ = rest_.subspan(values.size_bytes());
    return true;
  }
  // A text up to its NUL, which it goes without; as long as the body lives.
  bool TakeText(std::string_view* text);
  // Everything that is left, as text.
  std::string_view RestAsText();
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

// Pure functions of their arguments, for any thread; one thread at a time for each socket and direction. Errors are
// full lines with the errno of the system call (ECONNREFUSED: nobody listens there; EAGAIN: a non-blocking socket is not
// ready); kShutdown once the other side has ended the connection; EPROTO for bytes that are no message of this protocol
// and for messages beyond the limits.

// Sockets are close-on-exec. `name` is that of the abstract namespace, without its leading NUL. A listener, and what it
// accepts, does not block.
Result<UniqueFd> Listen(std::string_view name, int backlog);
Result<UniqueFd> Accept(int listener);
Result<UniqueFd> Connect(std::string_view name);

// Sends `header` (whose `body` and `in_memfd` are filled in here), the pieces of the body one behind the other, and
// copies of the descriptors.
Result<void> Send(int socket, Header header, std::span<const std::span<const std::byte>> body,
                  std::span<const int> descriptors);

// The next message. A message that is refused is gone, its descriptors are closed.
Result<Message> Receive(int socket, const ReceiveLimits& limits);

}  // namespace weightfs::lease
