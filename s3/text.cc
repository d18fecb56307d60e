// SPDX-License-Identifier: Apache-2.0
#include "s3/text.h"

#include <curl/curl.h>

#include <cstdio>
#include <ctime>

namespace weightfs::s3 {
namespace {

// The clock counts nanoseconds in 64 bits, so that it ends in 2262. Times are limited to 1970 to 2255: differences of
// two of them do not overflow either.
std::chrono::system_clock::time_point FromSeconds(time_t seconds) {
  constexpr time_t kLast = 9'000'000'000;
  return std::chrono::system_clock::time_point(std::chrono::seconds(std::clamp<time_t>(seconds, 0, kLast)));
}

}  // namespace

std::optional<std::chrono::system_clock::time_point> ParseIsoTime(const std::string& text) {
  std::tm parts{};
  const int fields = std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d", &parts.tm_year, &parts.tm_mon, &parts.tm_mday,
                                 &parts.tm_hour, &parts.tm_min, &parts.tm_sec);
  if (fields != 6) return std::nullopt;
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  return FromSeconds(timegm(&parts));
}

std::optional<std::chrono::system_clock::time_point> ParseHttpTime(const std::string& text) {
  const time_t seconds = curl_getdate(text.c_str(), nullptr);
  if (seconds < 0) return std::nullopt;
  return FromSeconds(seconds);
}

}  // namespace weightfs::s3
