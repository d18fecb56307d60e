// The memory that one receiving thread reads requests into, laid out so that the data of a write begins on a page.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "common/result.h"
#include "engine/buffer.h"

namespace weightfs {

// What stands before the data of a FUSE_WRITE: struct fuse_in_header and struct fuse_write_in, 40 bytes each.
inline constexpr uint64_t kWriteHeader = 80;

// Buffers for all receivers of a session. Two kinds, so that receiving never waits for the store: those that a write
// may leave with the store, as many as the memory allows, and one for each receiver that never leaves it.
class ReceiveBuffers {
 public:
  struct Options {
    ByteCount payload;                 // the largest write
    ByteCount shared_memory;           // for buffers that may be given away
    size_t receivers = 1;
  };
  static Result<std::unique_ptr<ReceiveBuffers>> Create(const Options& options);

  BufferPool& shared() { return *shared_; }
  BufferPool& own() { return *own_; }

 private:
  ReceiveBuffers() = default;
  std::unique_ptr<BufferPool> shared_, own_;
};

// Belongs to one thread, and is what Claim finds on that thread while it lives.
class ReceiveBuffer {
 public:
  explicit ReceiveBuffer(ReceiveBuffers& buffers);
  ~ReceiveBuffer();
  ReceiveBuffer(const ReceiveBuffer&) = delete;
  ReceiveBuffer& operator=(const ReceiveBuffer&) = delete;

  // Where the next request goes: kWriteHeader bytes before a page, then the payload. What the last request left in
  // memory that was not claimed is gone.
  std::span<std::byte> Prepare();

  // The buffer behind `data`, for whoever wants to keep it: the thread's next request goes elsewhere. Empty when `data`
  // is not the payload of the request that this thread works on, or when its memory cannot be given away now.
  static Buffer Claim(std::span<const std::byte> data);

 private:
  ReceiveBuffers& buffers_;
  Buffer own_;
  Buffer shared_;       // empty after a claim, or when all are in use
};

}  // namespace weightfs
