// SPDX-License-Identifier: Apache-2.0
// The alignment that O_DIRECT requires for a file.
#pragma once

#include <cstdint>
#include <optional>

namespace weightfs {

// Values in bytes, powers of two. Lengths need the alignment of offsets.
struct DirectAlignment {
  uint64_t offset = 4096;
  uint64_t memory = 4096;
};

// Asks the kernel for the alignment of a descriptor open with O_DIRECT. Returns nullopt when O_DIRECT was accepted but
// does not work.
std::optional<DirectAlignment> QueryDirectAlignment(int descriptor);

}  // namespace weightfs
