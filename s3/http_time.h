// SPDX-License-Identifier: Apache-2.0
// The notations of time in S3's answers. A time before 1970 or after 2255 is returned as the nearest one between them.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace weightfs::s3 {

// Parses "2026-11-23T18:47:26Z", also with fractions of a second or "+00:00", as in XML and JSON.
std::optional<std::chrono::system_clock::time_point> ParseIsoTime(const std::string& text);

// Parses "Mon, 23 Nov 2026 18:47:26 GMT", as in headers.
std::optional<std::chrono::system_clock::time_point> ParseHttpTime(const std::string& text);

}  // namespace weightfs::s3
