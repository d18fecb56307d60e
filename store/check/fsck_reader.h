// SPDX-License-Identifier: Apache-2.0
// Reads the data of a store in the order of its files, several requests ahead. Nobody but fsck*.cc includes this.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "io/buffer.h"
#include "store/check/fsck_internal.h"

namespace weightfs::fsck {

inline constexpr uint64_t kChunkBlocks = 2 * kMiB / kBlockSize;

// Written extents in pieces of at most kChunkBlocks.
class ChunkCursor {
 public:
  struct Chunk {
    const Extent* extent = nullptr;  // nullptr: no more
    uint64_t first = 0, count = 0;   // file blocks
  };
  explicit ChunkCursor(std::span<const Extent> extents) : extents_(extents) {}
  Chunk Next();

 private:
  std::span<const Extent> extents_;
  uint64_t skip_ = 0;  // blocks of the first extent already given out
};

// The checksum records of the catalog, one at a time. Externally synchronized.
class ChecksumReader {
 public:
  explicit ChecksumReader(KvStore& catalog) : catalog_(catalog) {}
  // nullopt where the catalog has none for the block.
  Result<std::optional<uint32_t>> Get(uint64_t ino, uint64_t block);

 private:
  KvStore& catalog_;
  uint64_t ino_ = 0, segment_ = 0;
  std::vector<uint32_t> checksums_;
};

// For one thread.
class DataReader {
 public:
  struct Piece {
    ChunkCursor::Chunk chunk;
    std::span<const std::byte> data;  // valid until the next call
    Result<void> result;
  };

  // With `depth` requests in flight.
  static Result<std::unique_ptr<DataReader>> Create(std::span<BlockDevice* const> devices, size_t depth);
  ~DataReader();  // waits for what is in flight

  // The next chunk of the cursor, which must be the same in every call; nullopt behind the last.
  std::optional<Piece> Next(ChunkCursor& cursor);

  // The checksum of one block as it lies on the device.
  Result<uint32_t> ReadOne(const Extent& extent, uint64_t block);

 private:
  class Read;
  DataReader(std::span<BlockDevice* const> devices, size_t depth);
  void Submit(const ChunkCursor::Chunk& chunk);

  const std::span<BlockDevice* const> devices_;
  const size_t depth_;
  std::unique_ptr<BufferPool> pool_;
  Buffer scratch_;
  std::unique_ptr<Read> current_;
  std::deque<std::unique_ptr<Read>> queue_;
};

}  // namespace weightfs::fsck
