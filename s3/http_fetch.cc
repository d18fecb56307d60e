// SPDX-License-Identifier: Apache-2.0
#include "s3/http_fetch.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include "common/result.h"
#include "s3/curl_handles.h"
#include "s3/request_url.h"
#include "s3/text.h"

namespace weightfs::s3 {
namespace {

constexpr size_t kMaxBody = 1 << 20;

size_t AppendBody(char* bytes, size_t, size_t count, void* target) {
  auto& body = *static_cast<std::string*>(target);
  if (body.size() + count > kMaxBody) return 0;
  body.append(bytes, count);
  return count;
}

int StopIfCancelled(void* cancelled, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<const std::atomic<bool>*>(cancelled)->load() ? 1 : 0;
}

Error FetchError(CURL* handle, CURLcode code, const FetchRequest& request, size_t received) {
  if (code == CURLE_ABORTED_BY_CALLBACK) return {ErrorCode::kCancelled, "cancelled"};
  const auto server = PrintableOrigin(request.url);
  if (code == CURLE_WRITE_ERROR && received > 0) return {ErrorCode::kTooLarge, server + ": the answer is too large"};
  curl_off_t connected = 0;
  curl_easy_getinfo(handle, CURLINFO_CONNECT_TIME_T, &connected);
  return {connected == 0 ? ErrorCode::kNotFound : ErrorCode::kIo,
          fmt::format("{}: {}", server, curl_easy_strerror(code))};
}

Result<CurlList> MakeHeaders(const FetchRequest& request) {
  CurlList headers;
  for (const auto& [name, value] : request.headers) {
    if (HasLineBreak(value)) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("{}: the header {} has a line break", PrintableOrigin(request.url), name)};
    }
    if (!Append(headers, fmt::format("{}: {}", name, value))) return ErrorCode::kNoMemory;
  }
  return headers;
}

}  // namespace

Result<FetchResponse> Fetch(const FetchRequest& request) {
  InitializeCurl();
  const CurlEasy easy(curl_easy_init());
  if (easy == nullptr) return ErrorCode::kNoMemory;
  ASSIGN_OR_RETURN(const auto headers, MakeHeaders(request));
  FetchResponse response;
  CURL* handle = easy.get();
  curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, request.connect_timeout_ms);
  curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, request.timeout_ms);
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, &AppendBody);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &response.body);
  if (!request.use_proxy) curl_easy_setopt(handle, CURLOPT_NOPROXY, "*");
  if (!request.ca_bundle.empty()) curl_easy_setopt(handle, CURLOPT_CAINFO, request.ca_bundle.c_str());
  if (request.method != "GET") {
    curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(handle, CURLOPT_POSTFIELDS, request.body.c_str());
    curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  if (request.cancelled != nullptr) {
    curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, &StopIfCancelled);
    curl_easy_setopt(handle, CURLOPT_XFERINFODATA, request.cancelled);
  }
  if (const auto code = curl_easy_perform(handle); code != CURLE_OK) {
    return FetchError(handle, code, request, response.body.size());
  }
  long status = 0;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  response.status = static_cast<int>(status);
  return response;
}

}  // namespace weightfs::s3
