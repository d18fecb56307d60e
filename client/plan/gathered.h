// SPDX-License-Identifier: Apache-2.0
// Reads several ranges of one file in one operation, and with a lease through one lease. The ranges take their places
// in a virtual file, where they follow each other. The operation reads the virtual file.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/handle.h"
#include "client/memory_view.h"
#include "client/target.h"
#include "common/result.h"

namespace weightfs::client {

// Shows parts of a real file one behind the other, in any order. Immutable.
class GatheredLayout final : public Layout {
 public:
  struct Part {
    uint64_t at = 0;      // offset in the virtual file: where the previous part ends
    uint64_t offset = 0;  // offset in the real file
    uint64_t length = 0;
  };
  // There is at least one part. `file` must outlive it.
  GatheredLayout(const Layout& file, std::vector<Part> parts) : file_(file), parts_(std::move(parts)) {}

  Run Locate(uint64_t offset, uint64_t length) const override;
  DirectAlignment alignment() const override { return file_.alignment(); }
  uint64_t FileOffset(uint64_t offset) const override;

 private:
  const Part& Find(uint64_t offset) const;

  const Layout& file_;
  const std::vector<Part> parts_;
};

// The blocks of the ranges of a Handle::ReadRanges.
struct GatheredBlocks {
  // Ranges that are closer to each other than this are read together with the bytes between them: one more transfer
  // would take longer.
  static constexpr uint64_t kNearby = 16 * 1024;

  // EINVAL if the ranges are not in ascending order, overlap, or do not have the size of the memory, and for memory
  // that is not one run of host memory.
  static Result<GatheredBlocks> Create(std::span<const ByteRange> ranges, const MemoryView& memory);

  // The bytes of the real file from the first range to the last one. The virtual file also begins at `begin`.
  uint64_t begin = 0;
  uint64_t end = 0;
  std::vector<GatheredLayout::Part> parts;  // whole blocks
  MemoryView memory;                        // of the operation: it discards the bytes between the ranges

 private:
  // Appends the blocks of a range. Returns the offset of the range in the virtual file.
  uint64_t Add(const ByteRange& range);
};

}  // namespace weightfs::client
