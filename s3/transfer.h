// SPDX-License-Identifier: Apache-2.0
// One attempt of a request, as libcurl runs it.
#pragma once

#include <curl/curl.h>

#include <memory>
#include <set>

#include "s3/client.h"
#include "s3/rate_limit.h"

namespace weightfs::s3 {

struct CurlDeleter {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using CurlEasy = std::unique_ptr<CURL, CurlDeleter>;
using CurlList = std::unique_ptr<curl_slist, CurlDeleter>;

struct CurlMultiDeleter {
  void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};
using CurlMulti = std::unique_ptr<CURLM, CurlMultiDeleter>;

// How long an attempt may be silent before it has stalled.
std::chrono::seconds StallLimit(const Settings& settings, const Request& request);
// How long the attempts of a request may fail before it has failed.
std::chrono::seconds GiveUpAfter(const Settings& settings, const Request& request);

// The result of an attempt.
struct Attempt {
  CURLcode result = CURLE_OK;
  std::string curl_error = {};                  // libcurl's text of the result
  int status = 0;                               // 0: no status line arrived
  Fields headers = {};                          // names in lower case
  std::string body = {};                        // of an error at most 64 KiB
  uint64_t bytes_sent = 0, bytes_received = 0;  // of bodies
  bool wrong_length = false;                    // the body of a successful response does not fit Request::into
  bool too_large = false;                       // ... exceeds Request::body_limit

  std::string_view header(std::string_view name) const;
};

// A transfer is reused for one request after the other, and keeps its connection. Not thread-safe.
class Transfer {
 public:
  // Both must outlive it.
  Transfer(const Settings& settings, RateLimit& rate);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // False if libcurl could not create a handle.
  explicit operator bool() const { return multi_ != nullptr && easy_ != nullptr; }

  // Makes an attempt. `interrupted` is called every 100 ms; kCancelled once it returns true. kNoMemory if the machine
  // lacks memory for it.
  Result<Attempt> Run(const Request& request, const std::string& url, const Fields& headers,
                      const Interrupted& interrupted);
  // False until the attempt can send its request.
  bool is_connected() const;

 private:
  bool Prepare(const std::string& url, const Fields& headers);
  Attempt Finish(CURLcode result);
  // Acknowledges what has arrived. A service with Nagle's algorithm (Ceph's gateway, by default) sends a short body
  // only after the acknowledgement of the headers, which the kernel would delay by 40 ms.
  void Acknowledge() const;
  static int OnCreated(void* self, curl_socket_t socket, curlsocktype);
  static int OnClosed(void* self, curl_socket_t socket);
  static int OnRequest(void* self, char*, char*, int, int);
  static size_t OnRead(char* target, size_t size, size_t count, void* self);
  static int OnSeek(void* self, curl_off_t offset, int origin);
  static size_t OnHeader(char* bytes, size_t size, size_t count, void* self);
  static size_t OnWrite(char* bytes, size_t size, size_t count, void* self);
  void SetCommonOptions();
  void SetMethod();
  bool Store(std::string_view bytes);

  const Settings& settings_;
  RateLimit& rate_;
  std::set<curl_socket_t> sockets_;  // open ones; libcurl closes them with multi_
  CurlMulti multi_;
  CurlEasy easy_;
  CurlList headers_;
  char error_[CURL_ERROR_SIZE] = {};
  const Request* request_ = nullptr;
  size_t sent_ = 0;       // of the body
  size_t stored_ = 0;     // in Request::into
  bool is_sent_ = false;  // with Request::guard: the attempt has begun
  Attempt attempt_;
};

}  // namespace weightfs::s3
