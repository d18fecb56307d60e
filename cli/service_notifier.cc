// SPDX-License-Identifier: Apache-2.0
#include "cli/service_notifier.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/start_thread.h"

namespace weightfs::cli {
namespace {

// Each request extends the timeout of the service from now on. The interval leaves time for a busy machine.
constexpr std::chrono::microseconds kExtension = std::chrono::minutes(1);
constexpr std::chrono::milliseconds kInterval = std::chrono::seconds(15);

void SendTo(int socket, std::string_view message) {
  while (send(socket, message.data(), message.size(), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

// Asks for more time in every interval, until the eventfd `wake` is readable.
void Extend(int socket, int wake) {
  pollfd woken{.fd = wake, .events = POLLIN, .revents = 0};
  do {
    SendTo(socket, fmt::format("EXTEND_TIMEOUT_USEC={}", kExtension.count()));
  } while (poll(&woken, 1, static_cast<int>(kInterval.count())) <= 0);
}

}  // namespace

Result<std::unique_ptr<ServiceNotifier>> ServiceNotifier::Connect(std::string_view address) {
  std::unique_ptr<ServiceNotifier> notifier(new ServiceNotifier);
  if (address.empty()) return notifier;
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if ((address[0] != '/' && address[0] != '@') || address.size() >= sizeof(name.sun_path)) {
    return Error{ErrorCode::kInvalid, fmt::format("NOTIFY_SOCKET={}: neither a path nor an abstract name", address)};
  }
  std::copy(address.begin(), address.end(), name.sun_path);
  if (address[0] == '@') name.sun_path[0] = '\0';
  // An abstract name ends with its length, and a path with a zero byte.
  const size_t length = offsetof(sockaddr_un, sun_path) + address.size() + (address[0] == '@' ? 0 : 1);
  notifier->socket_ = UniqueFd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!notifier->socket_ ||
      connect(notifier->socket_.get(), reinterpret_cast<const sockaddr*>(&name), static_cast<socklen_t>(length)) != 0) {
    return Error{ErrorCode::kIo, fmt::format("NOTIFY_SOCKET={}: {}", address, std::strerror(errno))};
  }
  return notifier;
}

ServiceNotifier::~ServiceNotifier() {
  if (!extender_.joinable()) return;
  const uint64_t one = 1;
  // Writing 1 to an eventfd fails only when its counter is full.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  extender_.join();
}

void ServiceNotifier::Ready(std::string_view status) { Send(fmt::format("READY=1\nSTATUS={}", status)); }

void ServiceNotifier::Stopping(std::string_view status) {
  if (!socket_ || extender_.joinable()) return;
  Send(fmt::format("STOPPING=1\nSTATUS={}", status));
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!wake_) return;
  auto thread = StartThread("weightfs-notify", [this] { Extend(socket_.get(), wake_.get()); });
  if (thread.has_value()) extender_ = *std::move(thread);
}

void ServiceNotifier::Send(std::string_view message) const {
  if (socket_) SendTo(socket_.get(), message);
}

}  // namespace weightfs::cli
