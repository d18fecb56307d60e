// SPDX-License-Identifier: Apache-2.0
// Small functions on the texts of HTTP and of configuration files.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

#include "common/parse_number.h"

namespace weightfs::s3 {

// Returns `text` without spaces, tabs and line breaks at both ends.
inline std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const auto first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

// Returns `text` with the letters of ASCII in lower case.
inline std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return lower;
}

// True if `text` would end the line of a header: it is then no name and no value of one.
inline bool HasLineBreak(std::string_view text) {
  return text.find_first_of(std::string_view("\r\n\0", 3)) != std::string_view::npos;
}

// The notations of time in S3's answers. A time before 1970 or after 2255 is returned as the nearest one between them.
using HttpTime = std::optional<std::chrono::system_clock::time_point>;
HttpTime ParseIsoTime(const std::string& text);   // "2026-11-23T18:47:26Z", also with fractions of a second or "+00:00"
HttpTime ParseHttpTime(const std::string& text);  // "Mon, 23 Nov 2026 18:47:26 GMT", as in headers

}  // namespace weightfs::s3
