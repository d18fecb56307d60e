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
#include <vector>

#include "common/log.h"
#include "common/parse_number.h"
#include "common/start_thread.h"

namespace weightfs {
namespace {

constexpr int kScrapeBacklog = 16;
constexpr size_t kLargestRequest = 8192;  // bytes
constexpr std::chrono::seconds kLongest{5};
constexpr size_t kMostClients = 64;

Error CannotListen(const std::string& address, const std::string& why) {
  return {ErrorCode::kInvalid, fmt::format("option metrics={}: {}", address, why)};
}

std::string HttpAnswer(std::string_view status, std::string_view type, std::string_view body,
                       std::string_view more = "") {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", status,
                     type, body.size(), more, body);
}

// Lines end with CR LF; people who type a request send LF alone.
bool IsComplete(const std::string& request) {
  return request.find("\r\n\r\n") != std::string::npos || request.find("\n\n") != std::string::npos;
}

bool MustWait() { return errno == EINTR || errno == EAGAIN; }

}  // namespace

std::string AnswerHttp(const std::string& request, const MetricsServer::Render& render) {
  constexpr std::string_view kText = "text/plain; charset=utf-8";
  const size_t space = request.find(' ');
  const size_t second = space == std::string::npos ? space : request.find(' ', space + 1);
  const size_t line = request.find('\n');
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
  struct stat status {};
  // Another mount may have replaced it.
  if (made_path_.has_value() && lstat(address_.c_str(), &status) == 0 &&
      made_path_ == std::pair(status.st_dev, status.st_ino)) {
    unlink(address_.c_str());
  }
}

Result<void> MetricsServer::Bind() {
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return CannotListen(address_, std::strerror(errno));
  RETURN_IF_ERROR(address_.starts_with('/') ? ListenAtPath() : ListenAtPort());
  if (listen(listener_.get(), kScrapeBacklog) != 0) return CannotListen(address_, std::strerror(errno));
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
  const bool exists = lstat(address_.c_str(), &status) == 0;
  if (exists && !S_ISSOCK(status.st_mode)) return CannotListen(address_, "the path exists and is no socket");
  if (exists) {
    const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (probe && connect(probe.get(), where, sizeof(name)) != 0 && errno == ECONNREFUSED) unlink(address_.c_str());
  }
  listener_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // The file gets the mode of the socket.
  if (!listener_ || fchmod(listener_.get(), 0600) != 0 || bind(listener_.get(), where, sizeof(name)) != 0) {
    return CannotListen(address_, std::strerror(errno));
  }
  if (lstat(address_.c_str(), &status) == 0) made_path_ = {status.st_dev, status.st_ino};
  return {};
}

Result<void> MetricsServer::ListenAtPort() {
  const size_t colon = address_.rfind(':');
  if (colon == std::string::npos || colon + 1 == address_.size()) {
    return CannotListen(address_, "must be HOST:PORT or an absolute path");
  }
  // getaddrinfo would take larger numbers modulo 65536.
  if (ParseNumber<uint16_t>(std::string_view(address_).substr(colon + 1)).value_or(0) == 0) {
    return CannotListen(address_, "the port must be a number from 1 to 65535");
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
  return CannotListen(address_, fmt::format("{}{}", std::strerror(error_number),
                                            error_number == EADDRINUSE ? "; another program listens there: choose "
                                                                         "another port, or a path of a socket"
                                                                       : ""));
}

void MetricsServer::Run() {
  std::vector<pollfd> polled;
  while (true) {
    polled = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    auto until = std::chrono::steady_clock::time_point::max();
    for (const Client& client : clients_) {
      const bool sends = client.state == Client::State::kSending;
      polled.push_back({client.socket.get(), static_cast<short>(sends ? POLLOUT : POLLIN), 0});
      until = std::min(until, client.deadline);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    const int limit_ms = clients_.empty() ? -1 : static_cast<int>(std::max<int64_t>(left, 0));
    if (poll(polled.data(), polled.size(), limit_ms) < 0) {
      if (errno == EINTR) continue;
      spdlog::error("the metrics are no longer served at {}: {}", address_, std::strerror(errno));
      return;
    }
    if (polled[0].revents != 0) return;
    for (size_t i = 2; i < polled.size(); ++i) {
      Client& client = clients_[i - 2];
      if (polled[i].revents != 0 && !Serve(client)) client.socket.Close();
    }
    std::erase_if(clients_, [now = std::chrono::steady_clock::now()](const Client& client) {
      return !client.socket || client.deadline <= now;
    });
    if (polled[1].revents != 0) Accept();
  }
}

void MetricsServer::Accept() {
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) {
    if (clients_.size() == kMostClients) clients_.pop_front();
    Client& client = clients_.emplace_back();
    client.socket = std::move(socket);
    client.deadline = std::chrono::steady_clock::now() + kLongest;
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the program stays in the queue
  }
}

bool MetricsServer::Serve(Client& client) {
  switch (client.state) {
    case Client::State::kReceiving: return Receive(client);
    case Client::State::kSending: return Send(client);
    case Client::State::kDraining: return Drain(client);
  }
  return false;
}

bool MetricsServer::Receive(Client& client) {
  constexpr std::string_view kText = "text/plain; charset=utf-8";
  char piece[1024];
  const ssize_t size = recv(client.socket.get(), piece, sizeof(piece), 0);
  if (size < 0) return MustWait();
  if (size == 0 && client.request.empty()) return false;
  client.request.append(piece, static_cast<size_t>(size));
  if (IsComplete(client.request)) {
    client.answer = AnswerHttp(client.request, render_);
  } else if (client.request.size() > kLargestRequest) {
    client.answer = HttpAnswer("431 Request Header Fields Too Large", kText, "the request is too large\n");
  } else if (size == 0) {
    client.answer = HttpAnswer("400 Bad Request", kText, "the request ends too early\n");
  } else {
    return true;
  }
  client.state = Client::State::kSending;
  return Send(client);
}

bool MetricsServer::Send(Client& client) {
  while (client.sent < client.answer.size()) {
    const ssize_t size =
        send(client.socket.get(), client.answer.data() + client.sent, client.answer.size() - client.sent, MSG_NOSIGNAL);
    if (size < 0) return MustWait();
    client.sent += static_cast<size_t>(size);
  }
  client.state = Client::State::kDraining;
  client.answer.clear();
  return shutdown(client.socket.get(), SHUT_WR) == 0;
}

bool MetricsServer::Drain(Client& client) {
  char piece[4096];
  const ssize_t size = recv(client.socket.get(), piece, sizeof(piece), 0);
  return size > 0 || (size < 0 && MustWait());
}

}  // namespace weightfs
