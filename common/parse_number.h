// SPDX-License-Identifier: Apache-2.0
// Numbers in texts.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace weightfs {

// Returns the decimal number, or none if `text` is anything else or the number does not fit in `Number`.
template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, failure] = std::from_chars(text.data(), end, number);
  return failure == std::errc() && at == end ? std::optional(number) : std::nullopt;
}

}  // namespace weightfs
