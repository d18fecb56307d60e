// SPDX-License-Identifier: Apache-2.0
// Paths in the command lines that messages advise.
#pragma once

#include <string>
#include <string_view>

namespace weightfs {

// `word` as one word of a POSIX shell: unchanged where it has only letters, digits and "_@%+=:,./-", else in single
// quotes. A word with control characters is written as $'…' with octal numbers, so that the result is one line.
std::string ShellQuote(std::string_view word);

}  // namespace weightfs
