// SPDX-License-Identifier: Apache-2.0
// Human-readable sizes: "8G", "512M", "1.5T", "4096".
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// Parses a size: digits with an optional fraction and an optional suffix K, M, G, T or P (powers of 1024; "iB" or "B"
// may follow, in either case). Returns kInvalid with a full line when the text is not a size, is negative or exceeds
// 2^63.
Result<ByteCount> ParseSize(std::string_view text);

// Formats a size as "8.00 GiB", "512.0 MiB" or "512 B": two decimals below 10, else one, and none for bytes.
std::string FormatSize(ByteCount size);

}  // namespace weightfs
