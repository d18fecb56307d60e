// SPDX-License-Identifier: Apache-2.0
// Quotes paths for the command lines in messages.
#pragma once

#include <string>
#include <string_view>

namespace weightfs {

// Returns `word` as one word of a POSIX shell: unchanged if it has only letters, digits and "_@%+=:,./-", otherwise in
// single quotes. A word with control characters becomes $'…' with octal escapes, so that the result is one line.
std::string ShellQuote(std::string_view word);

}  // namespace weightfs
