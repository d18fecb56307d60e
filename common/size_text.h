// SPDX-License-Identifier: Apache-2.0
// Sizes as people write them: "8G", "512M", "1.5T", "4096".
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// Parses a size: digits with an optional fraction and one of K, M, G, T, P (powers of 1024; an "iB" or "B" may
// follow, either case). kInvalid with a full line when it is not one, is negative or exceeds 2^63.
Result<ByteCount> ParseSize(std::string_view text);

// "8.00 GiB", "512.0 MiB", "512 B": below 10 two decimals, else one, and none for bytes.
std::string FormatSize(ByteCount size);

}  // namespace weightfs
