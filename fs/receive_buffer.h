// SPDX-License-Identifier: Apache-2.0
// The memory into which one receiver reads requests, laid out so that the blocks of a write are page-aligned.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "common/result.h"
#include "io/buffer.h"

namespace weightfs {

// The headers before the data of a FUSE_WRITE: struct fuse_in_header and struct fuse_write_in, 40 bytes each.
inline constexpr uint64_t kWriteHeader = 80;

// Buffers for all receivers of a session. There are two kinds, so that receiving never waits for the store: shared
// buffers, which a write may leave with the store, as many as the memory allows; and one private buffer per receiver.
class ReceiveBuffers {
 public:
  struct Options {
    ByteCount payload;        // maximum size of a write
    ByteCount shared_memory;  // for buffers that the store may keep
    size_t receivers = 1;
  };
  static Result<std::unique_ptr<ReceiveBuffers>> Create(const Options& options);

  BufferPool& shared() { return *shared_; }
  BufferPool& own() { return *own_; }

  // The expected offset in its block of the next large write. The kernel splits a large write at the pages of the
  // program's buffer, which is seldom page-aligned in Python. All pieces of one call except the first then begin at
  // the same offset in a block. Calls of 1 MiB each arrive as a large piece at the same offset and a small rest.
  uint64_t shift() const { return shift_.load(std::memory_order_relaxed); }
  void NoteLarge(uint64_t offset, uint64_t size) {
    const bool goes_on = end_.exchange(offset + size, std::memory_order_relaxed) == offset || offset == 0;
    shift_.store((goes_on ? offset + size : offset) % kBlockSize, std::memory_order_relaxed);
  }

 private:
  ReceiveBuffers() = default;
  std::unique_ptr<BufferPool> shared_, own_;
  std::atomic<uint64_t> end_{0}, shift_{0};
};

// Belongs to one thread. Claim finds it through a thread-local pointer.
class ReceiveBuffer {
 public:
  explicit ReceiveBuffer(ReceiveBuffers& buffers);
  ~ReceiveBuffer();
  ReceiveBuffer(const ReceiveBuffer&) = delete;
  ReceiveBuffer& operator=(const ReceiveBuffer&) = delete;

  // Returns the memory for the next request. It begins kWriteHeader bytes before the payload, which is shift() bytes
  // after a page boundary. Unclaimed data of the last request is lost.
  std::span<std::byte> Prepare();

  // Returns the buffer behind `data`, a write at `offset`, for a caller that keeps it; the thread uses another buffer
  // for its next request. Returns an empty buffer when `data` is not the payload of this thread's current request, when
  // its blocks are not page-aligned, or when its memory cannot be given away now. Uses `offset` to predict the
  // alignment of the next write.
  static Buffer Claim(std::span<const std::byte> data, uint64_t offset);

 private:
  ReceiveBuffers& buffers_;
  Buffer own_;
  Buffer shared_;       // empty after a claim, or when all are in use
  uint64_t shift_ = 0;  // of the payload in the memory of the last Prepare
};

}  // namespace weightfs
