// SPDX-License-Identifier: Apache-2.0
// The reference: the shortest libaio loop that keeps a number of requests in flight. Nothing of weightfs is in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "common/result.h"

namespace weightfs::bench {

struct DirectLoop {
  int descriptor = -1;
  bool write = false;
  unsigned depth = 32;
  uint64_t request = 0;  // bytes of each; a multiple of the device's block with O_DIRECT
  // The offset of the next request; nothing at the end.
  std::function<std::optional<uint64_t>()> next;
  // The offset on the descriptor, where it is another one than that of the request. May be empty.
  std::function<uint64_t(uint64_t offset)> translate;
  // Where the bytes of a request lie. `slot` < depth is the caller's while the request is in flight.
  std::function<std::byte*(unsigned slot, uint64_t offset)> memory;
  // Looks at what was read; false makes the loop fail with kCorrupt. May be empty.
  std::function<bool(const std::byte* data, uint64_t offset)> check;
};

// The number of requests done. Every request must be done in full.
Result<uint64_t> Run(const DirectLoop& loop);

}  // namespace weightfs::bench
