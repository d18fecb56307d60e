// SPDX-License-Identifier: Apache-2.0
// The reference: the shortest libaio loop that keeps a number of requests in flight. It uses no code of weightfs.
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
  uint64_t request = 0;  // bytes per request; with O_DIRECT a multiple of the device's block size
  // Returns the offset of the next request, or nothing at the end.
  std::function<std::optional<uint64_t>()> next;
  // Maps the offset of a request to an offset on the descriptor. May be empty if they are equal.
  std::function<uint64_t(uint64_t offset)> translate;
  // Returns the memory of a request. `slot` < depth is reserved for the request while it is in flight.
  std::function<std::byte*(unsigned slot, uint64_t offset)> memory;
  // Checks the data that was read; false makes the loop fail with kCorrupt. May be empty.
  std::function<bool(const std::byte* data, uint64_t offset)> check;
};

// Runs the loop and returns the number of requests. A short request is an error.
Result<uint64_t> Run(const DirectLoop& loop);

}  // namespace weightfs::bench
