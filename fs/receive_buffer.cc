// SPDX-License-Identifier: Apache-2.0
#include "fs/receive_buffer.h"

#include <algorithm>
#include <utility>

namespace weightfs {
namespace {

// Set during the lifetime of this thread's ReceiveBuffer. libfuse passes only the session to its callbacks.
thread_local ReceiveBuffer* current = nullptr;

}  // namespace

Result<std::unique_ptr<ReceiveBuffers>> ReceiveBuffers::Create(const Options& options) {
  std::unique_ptr<ReceiveBuffers> buffers(new ReceiveBuffers);
  BufferPool::Options pool;
  pool.buffer_size = options.payload + ByteCount{kBlockSize};  // space for a shift
  pool.headroom = ByteCount{kWriteHeader};
  pool.count = std::max<size_t>(options.shared_memory.value / options.payload.value, 1);
  pool.name = "write buffers";
  ASSIGN_OR_RETURN(buffers->shared_, BufferPool::Create(pool));
  pool.count = options.receivers;
  pool.name = "receive buffers";
  ASSIGN_OR_RETURN(buffers->own_, BufferPool::Create(pool));
  return buffers;
}

ReceiveBuffer::ReceiveBuffer(ReceiveBuffers& buffers) : buffers_(buffers), own_(buffers.own().Allocate()) {
  current = this;
}

ReceiveBuffer::~ReceiveBuffer() { current = nullptr; }

std::span<std::byte> ReceiveBuffer::Prepare() {
  if (!shared_) shared_ = buffers_.shared().TryAllocate();
  const Buffer& buffer = shared_ ? shared_ : own_;
  shift_ = buffers_.shift();
  return {buffer.header() + shift_, kWriteHeader + buffer.size().value - kBlockSize};
}

Buffer ReceiveBuffer::Claim(std::span<const std::byte> data, uint64_t offset) {
  if (current == nullptr) return {};
  current->buffers_.NoteLarge(offset, data.size());
  if (!current->shared_ || data.data() != current->shared_.data() + current->shift_) return {};
  if (offset % kBlockSize != current->shift_) return {};
  return std::exchange(current->shared_, Buffer());
}

}  // namespace weightfs
