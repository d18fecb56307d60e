// SPDX-License-Identifier: Apache-2.0
// Ownership of libcurl's objects.
#pragma once

#include <curl/curl.h>

#include <memory>
#include <mutex>
#include <string>
#include <tuple>

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

// Must precede the first use of libcurl in the process. libcurl requires it to run once.
inline void InitializeCurl() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

// Returns false, and leaves the list as it is, if the machine lacks memory for it.
[[nodiscard]] inline bool Append(CurlList& list, const std::string& line) {
  curl_slist* const head = curl_slist_append(list.get(), line.c_str());
  if (head == nullptr) return false;
  std::ignore = list.release();
  list.reset(head);
  return true;
}

}  // namespace weightfs::s3
