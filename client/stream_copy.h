// SPDX-License-Identifier: Apache-2.0
// Copies large pieces that are not read soon afterwards. The copy bypasses the cache, so the destination is not read
// first.
#pragma once

#include <cstddef>

namespace weightfs::client {

// Like std::memcpy; the ranges must not overlap.
void StreamCopy(std::byte* to, const std::byte* from, size_t size);

}  // namespace weightfs::client
