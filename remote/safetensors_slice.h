// SPDX-License-Identifier: Apache-2.0
// Some tensors of a safetensors file, as a safetensors file of their own.
#pragma once

#include <span>
#include <vector>

#include "common/result.h"

namespace weightfs::remote {

// Bytes of the old file that the new one has, too.
struct SlicePiece {
  uint64_t from = 0;  // offset in the old file
  uint64_t size = 0;  // never 0
  uint64_t to = 0;    // offset in the new file
};

struct SafetensorsSlice {
  std::string head;                     // of the new file: its first bytes
  std::vector<SlicePiece> pieces = {};  // the rest, contiguous and in the order of both files
  size_t tensors = 0;
  uint64_t size() const { return pieces.empty() ? head.size() : pieces.back().to + pieces.back().size; }
};

// The first bytes of a file that are needed to find the size of its header.
inline constexpr uint64_t kSafetensorsPrefix = 8;

// Returns the size of the header of a safetensors file of `file_size` bytes, including these 8 bytes. kInvalid if it is
// no safetensors file.
Result<uint64_t> SafetensorsHeaderSize(std::string_view prefix, uint64_t file_size);

// Selects the tensors whose names match one of the patterns (fnmatch(3), where '*' also matches dots and slashes). The
// data of the new file has them in the order of the old one, with the same types and shapes, and the header has the old
// `__metadata__`. `header` has the whole header with its prefix. kInvalid if the header is none of a safetensors file.
// No tensor matches: `tensors` is 0.
Result<SafetensorsSlice> SliceSafetensors(std::string_view header, uint64_t file_size,
                                          std::span<const std::string> patterns);

}  // namespace weightfs::remote
