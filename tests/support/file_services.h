// SPDX-License-Identifier: Apache-2.0
// The services that the files of a store share, for tests of single classes.
#pragma once

#include <memory>

#include "engine/extent_allocator.h"
#include "io/buffer.h"
#include "store/file/extent_map.h"
#include "store/file/file.h"
#include "store/file/read_cache.h"
#include "store/space/space_manager.h"

namespace weightfs {

// 64 MiB of space on each device, and a few chunks. Not thread-safe, but its parts are.
class TestFileServices {
 public:
  explicit TestFileServices(size_t devices = 1)
      : chunks_(BufferPool::Create({.buffer_size = ByteCount{kChunkBytes}, .count = 8, .name = "chunks"}).value()),
        space_(SpaceManager::Create(std::vector<BlockRun>(devices, {DeviceBlock{256}, kBlocks})).value()),
        cache_(*chunks_, nullptr) {}

  static constexpr BlockCount kBlocks{64 * kMiB / kBlockSize};
  SpaceManager& space() { return *space_; }
  ReadCache& cache() { return cache_; }
  ExtentMemory& extent_memory() { return *extent_memory_; }
  FileServices services() { return {*space_, cache_, extent_memory_}; }

 private:
  std::unique_ptr<BufferPool> chunks_;
  std::unique_ptr<SpaceManager> space_;
  ReadCache cache_;
  std::shared_ptr<ExtentMemory> extent_memory_ = std::make_shared<ExtentMemory>();
};

}  // namespace weightfs
