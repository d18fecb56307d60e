// SPDX-License-Identifier: Apache-2.0
#include "s3/transfer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <tuple>

#include "s3/text.h"

namespace weightfs::s3 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kErrorBody = size_t{64} << 10;
// The sizes with the least processor time per byte: larger ones do not fit in the second-level cache of a core.
constexpr long kUploadBuffer = 256 << 10, kReceiveBuffer = 256 << 10;
constexpr long kStalledBelow = 1024;  // bytes per second
constexpr long kSlowAnswerFactor = 10;
// A slow answer may consist of a byte now and then, which is no stall.
constexpr long kSlowAnswerTimeout = 3600;

// Returns false, and leaves the list as it is, if the machine lacks memory for it.
bool Append(CurlList& list, const std::string& line) {
  curl_slist* const head = curl_slist_append(list.get(), line.c_str());
  if (head == nullptr) return false;
  std::ignore = list.release();
  list.reset(head);
  return true;
}

bool IsSuccess(int status) { return status >= 200 && status < 300; }

std::string_view Find(const Fields& headers, std::string_view name) {
  const auto found = std::ranges::find(headers, name, &Fields::value_type::first);
  return found == headers.end() ? std::string_view() : found->second;
}

}  // namespace

std::chrono::seconds StallLimit(const Settings& settings, const Request& request) {
  return std::chrono::seconds(settings.stall_timeout_s) * (request.slow_answer ? kSlowAnswerFactor : 1);
}

std::chrono::seconds GiveUpAfter(const Settings& settings, const Request& request) {
  return std::chrono::seconds(settings.give_up_after_s) * (request.slow_answer ? kSlowAnswerFactor : 1);
}

std::string_view Response::header(std::string_view name) const { return Find(headers, name); }
std::string_view Attempt::header(std::string_view name) const { return Find(headers, name); }

void Transfer::Acknowledge() const {
  const int on = 1;
  for (const curl_socket_t socket : sockets_) {
    setsockopt(socket, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);  // a hint
  }
}

// The programs that this process starts must not keep its connections open.
int Transfer::OnCreated(void* self, curl_socket_t socket, curlsocktype) {
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  static_cast<Transfer*>(self)->sockets_.insert(socket);
  return CURL_SOCKOPT_OK;
}

int Transfer::OnClosed(void* self, curl_socket_t socket) {
  static_cast<Transfer*>(self)->sockets_.erase(socket);
  return close(socket);
}

// libcurl must be initialized once in a process, before its first use.
Transfer::Transfer(const Settings& settings, RateLimit& rate) : settings_(settings), rate_(rate) {
  static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (initialized != CURLE_OK) return;
  multi_.reset(curl_multi_init());
  easy_.reset(curl_easy_init());
}

Result<Attempt> Transfer::Run(const Request& request, const std::string& url, const Fields& headers,
                              const Interrupted& interrupted) {
  request_ = &request;
  if (!Prepare(url, headers) || curl_multi_add_handle(multi_.get(), easy_.get()) != CURLM_OK) {
    return ErrorCode::kNoMemory;
  }
  std::optional<Result<Attempt>> ended;
  auto next_look = Clock::now() + kInterruptionPoll;
  const auto poll_ms = static_cast<int>(kInterruptionPoll.count());
  for (int left = 0; !ended;) {
    curl_multi_perform(multi_.get(), &left);
    if (const CURLMsg* message = curl_multi_info_read(multi_.get(), &left)) {
      ended = Finish(message->data.result);
    } else if (Clock::now() >= next_look) {
      next_look = Clock::now() + kInterruptionPoll;
      if (interrupted()) ended = ErrorCode::kCancelled;
    } else if (curl_multi_poll(multi_.get(), nullptr, 0, poll_ms, nullptr) != CURLM_OK) {
      std::this_thread::sleep_for(kInterruptionPoll);  // if libcurl cannot wait, this must not spin
    }
  }
  curl_multi_remove_handle(multi_.get(), easy_.get());
  return *std::move(ended);
}

bool Transfer::Prepare(const std::string& url, const Fields& headers) {
  sent_ = stored_ = 0;
  is_sent_ = false;
  attempt_ = {};
  error_[0] = '\0';
  headers_.reset();
  for (const auto& [name, value] : headers) {
    // libcurl leaves out a header whose value is empty, unless it is written with ';'.
    if (!Append(headers_, value.empty() ? name + ";" : fmt::format("{}: {}", name, value))) return false;
  }
  if (!Append(headers_, "Expect:")) return false;
  curl_easy_reset(easy_.get());
  SetCommonOptions();
  SetMethod();
  curl_easy_setopt(easy_.get(), CURLOPT_HTTPHEADER, headers_.get());
  return curl_easy_setopt(easy_.get(), CURLOPT_URL, url.c_str()) == CURLE_OK;
}

void Transfer::SetCommonOptions() {
  CURL* handle = easy_.get();
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(handle, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
  curl_easy_setopt(handle, CURLOPT_QUICK_EXIT, 1L);  // to end does not wait for a name server
#endif
  curl_easy_setopt(handle, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(handle, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(handle, CURLOPT_SOCKOPTFUNCTION, &Transfer::OnCreated);
  curl_easy_setopt(handle, CURLOPT_SOCKOPTDATA, this);
  curl_easy_setopt(handle, CURLOPT_CLOSESOCKETFUNCTION, &Transfer::OnClosed);
  curl_easy_setopt(handle, CURLOPT_CLOSESOCKETDATA, this);
  curl_easy_setopt(handle, CURLOPT_UPLOAD_BUFFERSIZE, kUploadBuffer);
  curl_easy_setopt(handle, CURLOPT_BUFFERSIZE, kReceiveBuffer);
  if (request_->guard != nullptr) {
    curl_easy_setopt(handle, CURLOPT_PREREQFUNCTION, &Transfer::OnRequest);
    curl_easy_setopt(handle, CURLOPT_PREREQDATA, this);
  }
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, static_cast<long>(settings_.connect_timeout_s));
  if (!settings_.use_proxy) curl_easy_setopt(handle, CURLOPT_NOPROXY, "*");
  if (!settings_.ca_bundle.empty()) curl_easy_setopt(handle, CURLOPT_CAINFO, settings_.ca_bundle.c_str());

  // A service that needs long for its answer sends spaces meanwhile, which are few bytes.
  const auto stall = static_cast<long>(StallLimit(settings_, *request_).count());
  const auto slowest = settings_.upload_rate / std::max(settings_.connections, 1U) / 4;
  const long limit = settings_.upload_rate == 0 ? kStalledBelow : std::clamp<long>(static_cast<long>(slowest), 1, 1024);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, request_->slow_answer ? 1L : limit);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, stall);
  if (request_->slow_answer) curl_easy_setopt(handle, CURLOPT_TIMEOUT, kSlowAnswerTimeout);

  curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, error_);
  curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, &Transfer::OnHeader);
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, &Transfer::OnWrite);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, this);
}

void Transfer::SetMethod() {
  CURL* handle = easy_.get();
  const auto& method = request_->method;
  if (method == "HEAD") {
    curl_easy_setopt(handle, CURLOPT_NOBODY, 1L);
  } else if (method == "PUT" || method == "POST" || !request_->body.empty()) {
    // Also for an empty body, whose Content-Length of 0 must be sent.
    curl_easy_setopt(handle, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, method.c_str());
    curl_easy_setopt(handle, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request_->body.size()));
    curl_easy_setopt(handle, CURLOPT_READFUNCTION, &Transfer::OnRead);
    curl_easy_setopt(handle, CURLOPT_READDATA, this);
    curl_easy_setopt(handle, CURLOPT_SEEKFUNCTION, &Transfer::OnSeek);
    curl_easy_setopt(handle, CURLOPT_SEEKDATA, this);
  } else {
    curl_easy_setopt(handle, CURLOPT_HTTPGET, 1L);
    if (method != "GET") curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, method.c_str());
  }
}

bool Transfer::is_connected() const {
  curl_off_t microseconds = 0;
  return curl_easy_getinfo(easy_.get(), CURLINFO_PRETRANSFER_TIME_T, &microseconds) == CURLE_OK && microseconds > 0;
}

Attempt Transfer::Finish(CURLcode result) {
  attempt_.result = result;
  if (result != CURLE_OK) attempt_.curl_error = error_[0] != '\0' ? error_ : curl_easy_strerror(result);
  if (result == CURLE_ABORTED_BY_CALLBACK) attempt_.curl_error = "the connection ended before the answer";
  if (result == CURLE_OK && IsSuccess(attempt_.status) && request_->into && stored_ != request_->into->size()) {
    attempt_.wrong_length = true;
  }
  return std::exchange(attempt_, {});
}

// libcurl repeats a request by itself if a kept connection ends before the first byte of the answer.
int Transfer::OnRequest(void* self, char*, char*, int, int) {
  return std::exchange(static_cast<Transfer*>(self)->is_sent_, true) ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

size_t Transfer::OnRead(char* target, size_t size, size_t count, void* self) {
  auto& transfer = *static_cast<Transfer*>(self);
  const auto rest = transfer.request_->body.subspan(transfer.sent_);
  if (rest.empty()) return 0;
  const auto [piece, time] = transfer.rate_.Reserve(std::min(rest.size(), size * count), RateLimit::Clock::now());
  std::this_thread::sleep_until(time);
  std::memcpy(target, rest.data(), piece);
  transfer.sent_ += piece;
  transfer.attempt_.bytes_sent += piece;
  return piece;
}

// libcurl sends a body again if a kept connection turns out to be closed.
int Transfer::OnSeek(void* self, curl_off_t offset, int origin) {
  auto& transfer = *static_cast<Transfer*>(self);
  if (origin != SEEK_SET || offset < 0 || static_cast<size_t>(offset) > transfer.request_->body.size()) {
    return CURL_SEEKFUNC_FAIL;
  }
  transfer.sent_ = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

size_t Transfer::OnHeader(char* bytes, size_t size, size_t count, void* self) {
  auto& transfer = *static_cast<Transfer*>(self);
  auto& attempt = transfer.attempt_;
  const std::string_view line(bytes, size * count);
  if (line.starts_with("HTTP/")) {  // an interim status, such as 100, may precede the final one
    attempt.headers.clear();
    const auto space = line.find(' ');
    attempt.status = space == std::string_view::npos ? 0 : std::atoi(std::string(line.substr(space)).c_str());
  } else if (const auto colon = line.find(':'); colon != std::string_view::npos) {
    attempt.headers.emplace_back(LowerCase(line.substr(0, colon)), Trim(line.substr(colon + 1)));
  } else if (Trim(line).empty()) {
    transfer.Acknowledge();
  }
  return size * count;
}

size_t Transfer::OnWrite(char* bytes, size_t size, size_t count, void* self) {
  auto& transfer = *static_cast<Transfer*>(self);
  const std::string_view received(bytes, size * count);
  transfer.attempt_.bytes_received += received.size();
  return transfer.Store(received) ? received.size() : 0;
}

// Returns false if the transfer is of no use any more.
bool Transfer::Store(std::string_view bytes) {
  if (!IsSuccess(attempt_.status)) {
    attempt_.body += bytes.substr(0, kErrorBody - attempt_.body.size());
    return attempt_.body.size() < kErrorBody;
  }
  if (request_->into) {
    attempt_.wrong_length = bytes.size() > request_->into->size() - stored_;
    if (attempt_.wrong_length) return false;
    std::memcpy(request_->into->data() + stored_, bytes.data(), bytes.size());
    stored_ += bytes.size();
    return true;
  }
  attempt_.too_large = bytes.size() > request_->body_limit - attempt_.body.size();
  if (!attempt_.too_large) attempt_.body += bytes;
  return !attempt_.too_large;
}

}  // namespace weightfs::s3
