// SPDX-License-Identifier: Apache-2.0
// Reads several ranges of one file in one operation, and with a lease through one lease. The ranges take their places
// in a virtual file: their blocks follow each other there, in the order of the real file, without the blocks between
// them. The operation reads the virtual file, and its memory discards the bytes between the ranges.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/handle.h"
#include "client/memory_view.h"
#include "client/target.h"
#include "common/result.h"

namespace weightfs::client {

// The blocks that an operation reads. Immutable.
class GatheredBlocks {
 public:
  // Ranges that are closer to each other than this are read together with the bytes between them: one more transfer
  // would take longer.
  static constexpr uint64_t kNearby = 16 * 1024;

  // EINVAL if the ranges are not in ascending order, overlap, or do not have the size of the memory, and for memory
  // that is not one run of host memory.
  static Result<GatheredBlocks> Create(std::span<const ByteRange> ranges, const MemoryView& memory);

  // The bytes of the real file from the first range to the last one. The virtual file also begins at begin().
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  // The memory of the operation.
  const MemoryView& memory() const { return memory_; }

  struct Run {
    uint64_t at = 0;      // offset in the virtual file
    uint64_t offset = 0;  // offset in the real file, in the same place of a block
    uint64_t length = 0;  // whole blocks
  };
  // The run that contains an offset of the virtual file.
  const Run& Find(uint64_t at) const;

 private:
  // Appends the blocks of a range. Returns the offset of the range in the virtual file.
  uint64_t Add(const ByteRange& range);

  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  std::vector<Run> runs_;
  MemoryView memory_;
};

// A target that shows the virtual file. `file` is the real one, which was opened to read [begin(), end()).
std::unique_ptr<Target> MakeGatheredTarget(std::unique_ptr<Target> file, std::shared_ptr<const GatheredBlocks> blocks);

}  // namespace weightfs::client
