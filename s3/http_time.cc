// SPDX-License-Identifier: Apache-2.0
#include "s3/http_time.h"

#include <curl/curl.h>

#include <cstdio>
#include <ctime>

namespace weightfs::s3 {

std::optional<std::chrono::system_clock::time_point> ParseIsoTime(const std::string& text) {
  std::tm parts{};
  const int fields = std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d", &parts.tm_year, &parts.tm_mon, &parts.tm_mday,
                                 &parts.tm_hour, &parts.tm_min, &parts.tm_sec);
  if (fields != 6) return std::nullopt;
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  return std::chrono::system_clock::from_time_t(timegm(&parts));
}

std::optional<std::chrono::system_clock::time_point> ParseHttpTime(const std::string& text) {
  const time_t seconds = curl_getdate(text.c_str(), nullptr);
  if (seconds < 0) return std::nullopt;
  return std::chrono::system_clock::from_time_t(seconds);
}

}  // namespace weightfs::s3
