// SPDX-License-Identifier: Apache-2.0
// Text that comes from names, which may hold any byte, for a terminal or a file of lines.
#pragma once

#include <string>
#include <string_view>

namespace weightfs {

// Returns `text` with each byte of what may not be printed as \xNN: control characters (line breaks too), characters
// that break lines or turn the direction of writing, and bytes that are not UTF-8.
std::string Printable(std::string_view text);

}  // namespace weightfs
