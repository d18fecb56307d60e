// SPDX-License-Identifier: Apache-2.0
// A copy for large pieces that are not looked at soon after: past the cache, so that the memory written is
// not read first.
#pragma once

#include <cstddef>

namespace weightfs::client {

// As std::memcpy; the two may not overlap.
void StreamCopy(std::byte* to, const std::byte* from, size_t size);

}  // namespace weightfs::client
