// SPDX-License-Identifier: Apache-2.0
#include "io/buffer.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "common/assert.h"
#include "common/log.h"

namespace weightfs {

struct Buffer::Slot {
  BufferPool* pool = nullptr;  // null: of `owner`
  std::span<std::byte> memory;
  std::atomic<uint32_t> references{0};
  std::shared_ptr<const void> owner;
};

Buffer Buffer::Of(std::shared_ptr<const void> owner, std::span<std::byte> memory) {
  auto* slot = new Slot{.memory = memory, .references = 1, .owner = std::move(owner)};
  return Buffer(slot);
}

Buffer::Buffer(const Buffer& other) : slot_(other.slot_) {
  if (slot_ != nullptr) slot_->references.fetch_add(1, std::memory_order_relaxed);
}

Buffer::Buffer(Buffer&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}

Buffer& Buffer::operator=(Buffer other) noexcept {
  std::swap(slot_, other.slot_);
  return *this;
}

Buffer::~Buffer() {
  // Acquire and release: the next user of the slot sees everything that earlier holders did to it.
  if (slot_ == nullptr || slot_->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (slot_->pool != nullptr) {
    slot_->pool->Release(slot_);
  } else {
    delete slot_;
  }
}

std::byte* Buffer::data() const { return slot_->memory.data(); }

ByteCount Buffer::size() const { return ByteCount{slot_->memory.size()}; }

std::byte* Buffer::header() const { return data() - slot_->pool->options_.headroom.value; }

BufferPool::BufferPool(const Options& options) : options_(options) {}

size_t BufferPool::stride() const {
  // The headroom takes a whole page, so that the buffer behind it begins on one.
  return options_.buffer_size.value + (options_.headroom.value > 0 ? kPageSize : 0);
}

Result<std::unique_ptr<BufferPool>> BufferPool::Create(const Options& options) {
  const uint64_t size = options.buffer_size.value;
  constexpr uint64_t kLimit = std::numeric_limits<int64_t>::max() / 2;
  if (size == 0 || size % kBlockSize != 0 || options.count == 0 || options.headroom.value > kPageSize ||
      size > kLimit || options.count > kLimit / (size + kPageSize)) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}: {} buffers of {} bytes with {} bytes of headroom are not possible", options.name,
                             options.count, size, options.headroom.value)};
  }
  std::unique_ptr<BufferPool> pool(new BufferPool(options));
  const size_t wanted = RoundUp(pool->stride() * options.count, kHugePageSize);
  auto arena = HugePageMemory::Map(wanted, MAP_NORESERVE);
  if (!arena) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("{}: {}; lower the buffer or cache size", options.name, arena.error().what)};
  }
  pool->arena_ = std::move(*arena);
  if (pool->arena_.advice_error() != 0) {
    spdlog::warn("{}: no transparent huge pages ({}); large transfers will be slower", options.name,
                 std::strerror(pool->arena_.advice_error()));
  }

  pool->slots_ = std::make_unique<Buffer::Slot[]>(options.count);
  MutexLock lock(pool->mutex_);
  pool->free_.reserve(options.count);
  for (size_t i = options.count; i > 0; --i) {  // the lowest addresses go out first
    Buffer::Slot& slot = pool->slots_[i - 1];
    slot.pool = pool.get();
    slot.memory = {pool->arena_.data() + pool->stride() * i - options.buffer_size.value, options.buffer_size.value};
    pool->free_.push_back(&slot);
  }
  lock.Unlock();
  return pool;
}

BufferPool::~BufferPool() {
  if (slots_ != nullptr && in_use() != 0) {
    spdlog::critical("{}: destroyed while {} of {} are in use", options_.name, in_use(), options_.count);
    std::abort();
  }
}

Buffer BufferPool::TakeLocked() {
  Buffer::Slot* slot = free_.back();
  free_.pop_back();
  slot->references.store(1, std::memory_order_relaxed);
  return Buffer(slot);
}

// Waits until so many are free. Whoever asks for one would else take it before somebody who needs several.
void BufferPool::WaitLocked(size_t count, const std::function<void()>& relieve, MutexLock& lock) {
  if (waiting_.empty() && free_.size() >= count) return;
  constexpr std::chrono::milliseconds kPause{100};
  const auto own = waiting_.insert(waiting_.end(), count);
  while (waiting_.begin() != own || free_.size() < count) {
    if (!relieve) {
      freed_.wait(lock.native());
    } else if (freed_.wait_for(lock.native(), kPause) == std::cv_status::timeout) {
      lock.Unlock();
      relieve();
      lock.Lock();
    }
  }
  waiting_.erase(own);
  if (!waiting_.empty() && free_.size() - count >= waiting_.front()) freed_.notify_all();
}

Buffer BufferPool::Allocate() {
  MutexLock lock(mutex_);
  WaitLocked(1, {}, lock);
  return TakeLocked();
}

Buffer BufferPool::TryAllocate() {
  MutexLock lock(mutex_);
  return free_.empty() || !waiting_.empty() ? Buffer() : TakeLocked();
}

void BufferPool::Fill(size_t count, std::vector<Buffer>* buffers, const std::function<void()>& relieve) {
  WEIGHTFS_ASSERT(count <= capacity());
  MutexLock lock(mutex_);
  if (buffers->size() < count) WaitLocked(count - buffers->size(), relieve, lock);
  while (buffers->size() < count) buffers->push_back(TakeLocked());
}

bool BufferPool::TryFill(size_t count, std::vector<Buffer>* buffers) {
  MutexLock lock(mutex_);
  while (buffers->size() < count && !free_.empty() && waiting_.empty()) buffers->push_back(TakeLocked());
  return buffers->size() >= count;
}

bool BufferPool::AnyWaits() const {
  MutexLock lock(mutex_);
  return !waiting_.empty();
}

size_t BufferPool::in_use() const {
  MutexLock lock(mutex_);
  return options_.count - free_.size();
}

void BufferPool::Release(Buffer::Slot* slot) {
  MutexLock lock(mutex_);
  free_.push_back(slot);
  // Under the lock: once it is released with nothing in use, the pool may be destroyed.
  freed_.notify_all();
}

}  // namespace weightfs
