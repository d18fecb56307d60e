// SPDX-License-Identifier: Apache-2.0
// Makes names printable. Names may hold any byte.
#pragma once

#include <string>
#include <string_view>

namespace weightfs {

// Returns `text` with the bytes of unprintable characters as \xNN: control characters (including line breaks),
// characters that break lines or change the text direction, and bytes that are not UTF-8.
std::string Printable(std::string_view text);

bool IsUtf8(std::string_view text);

}  // namespace weightfs
