// SPDX-License-Identifier: Apache-2.0
#include "common/shell_quote.h"

#include <fmt/format.h>

#include <algorithm>

namespace weightfs {
namespace {

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
}

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

}  // namespace

std::string ShellQuote(std::string_view word) {
  if (!word.empty() && std::all_of(word.begin(), word.end(), IsPlain)) return std::string(word);
  const bool controls = std::any_of(word.begin(), word.end(), IsControl);
  std::string quoted = controls ? "$'" : "'";
  for (const char c : word) {
    if (IsControl(c)) {
      quoted += fmt::format("\\{:03o}", static_cast<unsigned char>(c));
    } else if (controls && (c == '\'' || c == '\\')) {
      quoted += {'\\', c};
    } else if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted.push_back(c);
    }
  }
  return quoted + "'";
}

}  // namespace weightfs
