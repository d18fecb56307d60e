// SPDX-License-Identifier: Apache-2.0
// What O_DIRECT needs of the transfers of a file.
#pragma once

#include <cstdint>
#include <optional>

namespace weightfs {

// In bytes; powers of two. Lengths need the alignment of offsets.
struct DirectAlignment {
  uint64_t offset = 4096;
  uint64_t memory = 4096;
};

// Asks the kernel about a descriptor that is open with O_DIRECT. Nothing where O_DIRECT was accepted and does not work.
std::optional<DirectAlignment> QueryDirectAlignment(int descriptor);

}  // namespace weightfs
