// SPDX-License-Identifier: Apache-2.0
// The memory that one receiving thread reads requests into, laid out so that the blocks of a write lie on pages.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "common/result.h"
#include "io/buffer.h"

namespace weightfs {

// What stands before the data of a FUSE_WRITE: struct fuse_in_header and struct fuse_write_in, 40 bytes each.
inline constexpr uint64_t kWriteHeader = 80;

// Buffers for all receivers of a session. Two kinds, so that receiving never waits for the store: those that a write
// may leave with the store, as many as the memory allows, and one for each receiver that never leaves it.
class ReceiveBuffers {
 public:
  struct Options {
    ByteCount payload;        // the largest write
    ByteCount shared_memory;  // for buffers that may be given away
    size_t receivers = 1;
  };
  static Result<std::unique_ptr<ReceiveBuffers>> Create(const Options& options);

  BufferPool& shared() { return *shared_; }
  BufferPool& own() { return *own_; }

  // Where in a block the next large write is thought to begin. The kernel cuts a large write at the pages of the
  // program's buffer, which seldom begins on one (Python's): all pieces of one call but the first then begin at the
  // same place inside a block; calls of 1 MiB each arrive as a large piece at the same place and a small rest.
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

// Belongs to one thread, and is what Claim finds on that thread while it lives.
class ReceiveBuffer {
 public:
  explicit ReceiveBuffer(ReceiveBuffers& buffers);
  ~ReceiveBuffer();
  ReceiveBuffer(const ReceiveBuffer&) = delete;
  ReceiveBuffer& operator=(const ReceiveBuffer&) = delete;

  // Where the next request goes: kWriteHeader bytes before the place of the payload, which is shift() bytes behind a
  // page. What the last request left in memory that was not claimed is gone.
  std::span<std::byte> Prepare();

  // The buffer behind `data`, a write at `offset`, for whoever wants to keep it: the thread's next request goes
  // elsewhere. Empty when `data` is not the payload of the request that this thread works on, when its blocks do not
  // lie on pages, or when its memory cannot be given away now. Learns from `offset` where the next write may begin.
  static Buffer Claim(std::span<const std::byte> data, uint64_t offset);

 private:
  ReceiveBuffers& buffers_;
  Buffer own_;
  Buffer shared_;       // empty after a claim, or when all are in use
  uint64_t shift_ = 0;  // of the payload in the memory of the last Prepare
};

}  // namespace weightfs
