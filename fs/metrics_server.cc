// SPDX-License-Identifier: Apache-2.0
#include "fs/metrics_server.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "common/log.h"
#include "common/start_thread.h"

namespace weightfs {
namespace {

constexpr int kBacklog = 16;
constexpr size_t kLargestRequest = 8192;  // bytes
constexpr std::chrono::seconds kLongest{5};

Error CannotListen(const std::string& address, const std::string& why) {
  return {ErrorCode::kInvalid, fmt::format("option metrics={}: {}", address, why)};
}

// Waits until the descriptor is ready. Returns false at the deadline, or when `wake` is.
bool WaitFor(int descriptor, short events, int wake, std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  pollfd polled[] = {{descriptor, events, 0}, {wake, POLLIN, 0}};
  const int ready = poll(polled, 2, static_cast<int>(std::max<int64_t>(left, 0)));
  return ready > 0 && polled[0].revents != 0 && polled[1].revents == 0;
}

std::string HttpAnswer(std::string_view status, std::string_view type, std::string_view body,
                       std::string_view more = "") {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", status,
                     type, body.size(), more, body);
}

}  // namespace

std::string AnswerHttp(const std::string& request, const MetricsServer::Render& render) {
  constexpr std::string_view kText = "text/plain; charset=utf-8";
  const size_t space = request.find(' ');
  const size_t second = space == std::string::npos ? space : request.find(' ', space + 1);
  const size_t line = request.find("\r\n");
  if (second == std::string::npos || line == std::string::npos || second > line ||
      request.compare(second + 1, 5, "HTTP/") != 0) {
    return HttpAnswer("400 Bad Request", kText, "this is no HTTP request\n");
  }
  const std::string method = request.substr(0, space);
  std::string path = request.substr(space + 1, second - space - 1);
  path = path.substr(0, path.find('?'));
  if (method != "GET" && method != "HEAD") {
    return HttpAnswer("405 Method Not Allowed", kText, "only GET and HEAD\n", "Allow: GET, HEAD\r\n");
  }
  if (path != "/metrics" && path != "/") return HttpAnswer("404 Not Found", kText, "the metrics are at /metrics\n");
  const bool open = request.find("application/openmetrics-text") != std::string::npos;
  const std::string body = render(open ? MetricsFormat::kOpenMetrics : MetricsFormat::kPrometheus);
  const std::string answer = HttpAnswer(
      "200 OK",
      open ? "application/openmetrics-text; version=1.0.0; charset=utf-8" : "text/plain; version=0.0.4; charset=utf-8",
      body);
  return method == "GET" ? answer : answer.substr(0, answer.size() - body.size());
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::Listen(const std::string& address) {
  std::unique_ptr<MetricsServer> server(new MetricsServer(address));
  RETURN_IF_ERROR(server->Bind());
  return server;
}

Result<void> MetricsServer::Start(Render render) {
  render_ = std::move(render);
  ASSIGN_OR_RETURN(thread_, StartThread("weightfs-http", [this] { Run(); }));
  return {};
}

MetricsServer::~MetricsServer() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));  // fails only if it is readable
    thread_.join();
  }
  if (made_path_) unlink(address_.c_str());
}

Result<void> MetricsServer::Bind() {
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return CannotListen(address_, std::strerror(errno));
  RETURN_IF_ERROR(address_.starts_with('/') ? ListenAtPath() : ListenAtPort());
  if (listen(listener_.get(), kBacklog) != 0) return CannotListen(address_, std::strerror(errno));
  return {};
}

Result<void> MetricsServer::ListenAtPath() {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (address_.size() >= sizeof(name.sun_path)) return CannotListen(address_, "the path is too long for a socket");
  std::memcpy(name.sun_path, address_.data(), address_.size());
  const auto* where = reinterpret_cast<const sockaddr*>(&name);
  // A socket that nobody listens at is left over from a mount that was killed.
  struct stat status {};
  if (lstat(address_.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) {
    const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (probe && connect(probe.get(), where, sizeof(name)) != 0 && errno == ECONNREFUSED) unlink(address_.c_str());
  }
  listener_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_ || bind(listener_.get(), where, sizeof(name)) != 0) {
    return CannotListen(address_, std::strerror(errno));
  }
  made_path_ = true;
  return {};
}

Result<void> MetricsServer::ListenAtPort() {
  const size_t colon = address_.rfind(':');
  if (colon == std::string::npos || colon + 1 == address_.size()) {
    return CannotListen(address_, "must be HOST:PORT or an absolute path");
  }
  std::string host = address_.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), address_.c_str() + colon + 1, &hints, &found);
  if (error != 0) return CannotListen(address_, gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  int error_number = 0;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    UniqueFd made(socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol));
    const int on = 1;
    if (made && setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(made.get(), at->ai_addr, at->ai_addrlen) == 0) {
      listener_ = std::move(made);
      return {};
    }
    error_number = errno;
  }
  return CannotListen(address_, std::strerror(error_number));
}

void MetricsServer::Run() {
  while (true) {
    pollfd polled[] = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (poll(polled, 2, -1) < 0 && errno != EINTR) {
      spdlog::error("the metrics are no longer served at {}: {}", address_, std::strerror(errno));
      return;
    }
    if (polled[1].revents != 0) return;
    if (polled[0].revents == 0) continue;
    const UniqueFd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection) {
      Serve(connection);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the program stays in the queue
    }
  }
}

void MetricsServer::Serve(const UniqueFd& connection) {
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  std::string request;
  char piece[1024];
  while (request.find("\r\n\r\n") == std::string::npos) {
    if (request.size() > kLargestRequest || !WaitFor(connection.get(), POLLIN, wake_.get(), deadline)) return;
    const ssize_t size = recv(connection.get(), piece, sizeof(piece), 0);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (size <= 0) return;
    request.append(piece, static_cast<size_t>(size));
  }
  const std::string answer = AnswerHttp(request, render_);
  for (size_t sent = 0; sent < answer.size();) {
    if (!WaitFor(connection.get(), POLLOUT, wake_.get(), deadline)) return;
    const ssize_t size = send(connection.get(), answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (size < 0) return;
    sent += static_cast<size_t>(size);
  }
}

}  // namespace weightfs
