// SPDX-License-Identifier: Apache-2.0
// Reads the data of a store in file order, several requests ahead. Included by fsck*.cc only.
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

// Iterates over written extents in pieces of at most kChunkBlocks.
class ChunkCursor {
 public:
  struct Chunk {
    const Extent* extent = nullptr;  // nullptr: the end
    uint64_t first = 0, count = 0;   // file blocks
  };
  explicit ChunkCursor(std::span<const Extent> extents) : extents_(extents) {}
  Chunk Next();

 private:
  std::span<const Extent> extents_;
  uint64_t skip_ = 0;  // blocks of the first extent already returned
};

// Reads the checksum records of the catalog, one at a time. Externally synchronized.
class ChecksumReader {
 public:
  explicit ChecksumReader(KvStore& catalog) : catalog_(catalog) {}
  // Returns nullopt when the catalog has no checksum for the block.
  Result<std::optional<uint32_t>> Get(uint64_t ino, uint64_t block);

 private:
  KvStore& catalog_;
  uint64_t ino_ = 0, segment_ = 0;
  std::vector<uint32_t> checksums_;
};

// Reads chunks ahead of the caller. Not thread-safe.
class DataReader {
 public:
  struct Piece {
    ChunkCursor::Chunk chunk;
    std::span<const std::byte> data;  // valid until the next call
    Result<void> result;
  };

  // Keeps up to `depth` requests in flight.
  static Result<std::unique_ptr<DataReader>> Create(std::span<BlockDevice* const> devices, size_t depth);
  ~DataReader();  // waits for requests in flight

  // Returns the next chunk of the cursor; nullopt after the last one. Pass the same cursor in every call.
  std::optional<Piece> Next(ChunkCursor& cursor);

  // Reads one block from the device and returns its checksum.
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
