// SPDX-License-Identifier: Apache-2.0
#include "common/printable.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

namespace weightfs {
namespace {

struct Character {
  size_t size = 1;  // bytes
  char32_t code = 0;
  bool valid = false;  // shortest UTF-8 form, and not a surrogate
};

Character FirstOf(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(text[at]); };
  if (byte(0) < 0x80) return {1, byte(0), true};
  const size_t size = byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || text.size() < size) return {};
  char32_t code = byte(0) & (0x7F >> size);
  for (size_t at = 1; at < size; ++at) {
    if ((byte(at) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(at) & 0x3F);
  }
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return {size, code, code >= kLeast[size] && code <= 0x10FFFF && !surrogate};
}

bool MayBePrinted(char32_t code) {
  if (code < 0x20 || (code >= 0x7F && code < 0xA0)) return false;
  if (code == 0x2028 || code == 0x2029) return false;  // line and paragraph separators
  return !(code >= 0x202A && code <= 0x202E) && !(code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    Character next = FirstOf(text);
    if (!next.valid) next.size = 1;
    const std::string_view bytes = text.substr(0, next.size);
    if (next.valid && MayBePrinted(next.code)) {
      out += bytes;
    } else {
      for (const char byte : bytes) fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<uint8_t>(byte));
    }
    text.remove_prefix(next.size);
  }
  return out;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const Character next = FirstOf(text);
    if (!next.valid) return false;
    text.remove_prefix(next.size);
  }
  return true;
}

}  // namespace weightfs
