// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace weightfs {

// The bytes in hexadecimal digits, two each, in lower case.
inline std::string ToHex(std::span<const std::byte> bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const std::byte byte : bytes)
    hex += {kDigits[std::to_integer<size_t>(byte) >> 4], kDigits[std::to_integer<size_t>(byte) & 15]};
  return hex;
}
inline std::string ToHex(std::span<const unsigned char> bytes) { return ToHex(std::as_bytes(bytes)); }
inline std::string ToHex(std::string_view bytes) { return ToHex(std::as_bytes(std::span(bytes))); }

}  // namespace weightfs
