// SPDX-License-Identifier: Apache-2.0
// Answers GET /metrics over HTTP, for Prometheus (-o metrics=). Private to fs/.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/result.h"
#include "common/unique_fd.h"
#include "fs/metrics_text.h"

namespace weightfs {

// One thread answers one connection after the other, and waits at most five seconds for each. It knows no passwords:
// whoever reaches the address may read the metrics, which name the store and nothing in it.
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
  explicit MetricsServer(std::string address) : address_(std::move(address)) {}
  Result<void> Bind();
  Result<void> ListenAtPath();
  Result<void> ListenAtPort();
  void Run();
  void Serve(const UniqueFd& connection);

  const std::string address_;
  Render render_;  // set before the thread begins
  UniqueFd listener_, wake_;
  bool made_path_ = false;
  std::thread thread_;
};

// The answer to an HTTP request with its headers: 200, 400, 404 or 405.
std::string AnswerHttp(const std::string& request, const MetricsServer::Render& render);

}  // namespace weightfs
