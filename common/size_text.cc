// SPDX-License-Identifier: Apache-2.0
#include "common/size_text.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace weightfs {

Result<ByteCount> ParseSize(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return Error{ErrorCode::kInvalid, fmt::format("'{}' is not a size ({}); write e.g. 64M, 8G or 1.5T", text, why)};
  };
  double number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (parsed.ec != std::errc()) return refuse("no number");
  std::string_view unit(parsed.ptr, static_cast<size_t>(end - parsed.ptr));
  double scale = 1;
  if (!unit.empty()) {
    static constexpr std::string_view kUnits = "KMGTP";
    const size_t at = kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0]))));
    if (at != std::string_view::npos) {
      scale = std::pow(1024.0, static_cast<double>(at + 1));
      unit.remove_prefix(1);
      if (unit == "iB" || unit == "ib") unit = {};
    }
    if (unit == "B" || unit == "b") unit = {};
    if (!unit.empty()) return refuse("unknown unit");
  }
  const double bytes = number * scale;
  if (!(bytes >= 0)) return refuse("negative");
  if (bytes >= 9.2e18) return refuse("too large");
  return ByteCount{static_cast<uint64_t>(bytes)};
}

std::string FormatSize(ByteCount size) {
  static constexpr std::array<const char*, 6> kNames = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(size.value);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", size.value)
                   : fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, kNames[unit]);
}

}  // namespace weightfs
