// SPDX-License-Identifier: Apache-2.0
// Answers GET /metrics over HTTP, for Prometheus (-o metrics=). Private to fs/.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "common/result.h"
#include "common/unique_fd.h"
#include "fs/metrics_text.h"

namespace weightfs {

// One thread serves up to 64 connections at once and closes each after five seconds; one more replaces the oldest. So
// clients that send nothing hold up nobody. It knows no passwords: whoever reaches the address may read the metrics,
// which name the store and nothing in it.
class MetricsServer {
 public:
  using Render = std::function<std::string(MetricsFormat)>;
  // `address` is HOST:PORT, [IPV6]:PORT, or the absolute path of a Unix socket to create. Clients wait until Start.
  // Errors are full lines.
  static Result<std::unique_ptr<MetricsServer>> Listen(const std::string& address);
  Result<void> Start(Render render);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

 private:
  struct Client {
    // The answer is sent when the request is complete. What the client sends after that is discarded, because a close
    // with unread data could take the answer away from it.
    enum class State : unsigned char { kReceiving, kSending, kDraining };
    UniqueFd socket;
    std::chrono::steady_clock::time_point deadline;
    State state = State::kReceiving;
    std::string request, answer;
    size_t sent = 0;  // bytes of the answer
  };

  explicit MetricsServer(std::string address) : address_(std::move(address)) {}
  Result<void> Bind();
  Result<void> ListenAtPath();
  Result<void> ListenAtPort();
  void Run();
  void Accept();
  // Returns false when the connection has ended.
  bool Serve(Client& client);
  bool Receive(Client& client);
  static bool Send(Client& client);
  static bool Drain(Client& client);

  const std::string address_;
  Render render_;  // set before the thread begins
  UniqueFd listener_, wake_;
  std::optional<std::pair<dev_t, ino_t>> made_path_;  // the socket that this object has made at address_
  std::deque<Client> clients_;                        // of the thread; the oldest first
  std::thread thread_;
};

// The answer to an HTTP request with its headers: 200, 400, 404 or 405.
std::string AnswerHttp(const std::string& request, const MetricsServer::Render& render);

}  // namespace weightfs
