// SPDX-License-Identifier: Apache-2.0
#include "store/check/fsck_reader.h"

#include <algorithm>
#include <condition_variable>
#include <utility>

#include "common/checksum.h"
#include "common/mutex.h"

namespace weightfs::fsck {
namespace {

ByteOffset Physical(const Extent& extent, uint64_t block) {
  return ToBytes(extent.record.start + BlockCount{block - extent.first});
}

}  // namespace

ChunkCursor::Chunk ChunkCursor::Next() {
  while (!extents_.empty()) {
    const Extent& extent = extents_.front();
    const uint64_t left = extent.IsWritten() ? extent.record.count.value - skip_ : 0;
    if (left == 0) {
      extents_ = extents_.subspan(1);
      skip_ = 0;
      continue;
    }
    const Chunk chunk{&extent, extent.first + skip_, std::min(left, kChunkBlocks)};
    skip_ += chunk.count;
    return chunk;
  }
  return {};
}

Result<std::optional<uint32_t>> ChecksumReader::Get(uint64_t ino, uint64_t block) {
  const uint64_t segment = block / keys::kSegmentBlocks, index = block % keys::kSegmentBlocks;
  if (ino != ino_ || segment != segment_) {
    ASSIGN_OR_RETURN(const auto bytes, catalog_.Get(keys::Checksums(InodeId{ino}, segment)));
    checksums_.clear();
    if (bytes) {
      if (auto decoded = DecodeChecksums(*bytes)) checksums_ = std::move(*decoded);
    }
    ino_ = ino;
    segment_ = segment;
  }
  if (index >= checksums_.size()) return std::optional<uint32_t>();
  return std::optional(checksums_[index]);
}

class DataReader::Read final : public IoRequest {
 public:
  Read(Buffer memory, const ChunkCursor::Chunk& piece) : buffer(std::move(memory)), chunk(piece) {
    data = buffer.data();
    size = {piece.count * kBlockSize};
    offset = Physical(*piece.extent, piece.first);
  }
  void OnComplete(Result<void> result) override {
    MutexLock lock(mutex_);
    result_ = std::move(result);
    done_ = true;
    ready_.notify_one();
  }
  Result<void> Wait() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!done_) ready_.wait(lock.native());
    return result_;
  }

  const Buffer buffer;
  const ChunkCursor::Chunk chunk;

 private:
  Mutex mutex_;
  std::condition_variable ready_;
  bool done_ GUARDED_BY(mutex_) = false;
  Result<void> result_ GUARDED_BY(mutex_);
};

DataReader::DataReader(std::span<BlockDevice* const> devices, size_t depth) : devices_(devices), depth_(depth) {}

// Allocates one buffer per request in flight, one for the caller's current chunk, and one for single blocks.
Result<std::unique_ptr<DataReader>> DataReader::Create(std::span<BlockDevice* const> devices, size_t depth) {
  std::unique_ptr<DataReader> reader(new DataReader(devices, depth));
  const ByteCount size{kChunkBlocks * kBlockSize};
  ASSIGN_OR_RETURN(reader->pool_, BufferPool::Create({.buffer_size = size, .count = depth + 2, .name = "fsck"}));
  reader->scratch_ = reader->pool_->Allocate();
  return reader;
}

DataReader::~DataReader() {
  for (const auto& read : queue_) static_cast<void>(read->Wait().has_value());
}

void DataReader::Submit(const ChunkCursor::Chunk& chunk) {
  queue_.push_back(std::make_unique<Read>(pool_->Allocate(), chunk));
  IoRequest* request = queue_.back().get();
  devices_[chunk.extent->record.device.value]->Submit({&request, 1});
}

std::optional<DataReader::Piece> DataReader::Next(ChunkCursor& cursor) {
  current_.reset();
  while (queue_.size() < depth_) {
    const auto chunk = cursor.Next();
    if (chunk.extent == nullptr) break;
    Submit(chunk);
  }
  if (queue_.empty()) return std::nullopt;
  current_ = std::move(queue_.front());
  queue_.pop_front();
  auto result = current_->Wait();
  return Piece{current_->chunk, current_->buffer.bytes().first(current_->size.value), std::move(result)};
}

Result<uint32_t> DataReader::ReadOne(const Extent& extent, uint64_t block) {
  const auto bytes = scratch_.bytes().first(kBlockSize);
  RETURN_IF_ERROR(devices_[extent.record.device.value]->Read(Physical(extent, block), bytes));
  return Crc32c(bytes);
}

}  // namespace weightfs::fsck
