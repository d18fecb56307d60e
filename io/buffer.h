// SPDX-License-Identifier: Apache-2.0
// Page-aligned I/O memory in transparent huge pages, handed out from bounded pools.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/units.h"
#include "io/huge_pages.h"

namespace weightfs {

class BufferPool;

// A counted reference to one buffer of a pool, or to other memory; the last reference returns the buffer. Copying a
// Buffer is thread-safe; access to its bytes is not synchronized. An empty Buffer references nothing.
class Buffer {
 public:
  Buffer() = default;
  // Memory of `owner`, which is released with the last reference.
  static Buffer Of(std::shared_ptr<const void> owner, std::span<std::byte> memory);
  Buffer(const Buffer& other);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer other) noexcept;
  ~Buffer();

  explicit operator bool() const { return slot_ != nullptr; }
  std::byte* data() const;  // page-aligned
  ByteCount size() const;
  std::span<std::byte> bytes() const { return {data(), size().value}; }
  // The pool's `headroom` bytes that end where data() begins. Only for buffers of a pool.
  std::byte* header() const;

 private:
  friend class BufferPool;
  struct Slot;
  explicit Buffer(Slot* slot) : slot_(slot) {}
  Slot* slot_ = nullptr;
};

// Equal buffers in one arena that never grows. Thread-safe. Must outlive its buffers: the destructor aborts with a
// message while one is in use.
class BufferPool {
 public:
  struct Options {
    ByteCount buffer_size{2 * kMiB};  // a multiple of kBlockSize
    size_t count = 32;
    ByteCount headroom{0};         // bytes kept before each buffer's first page, at most a page
    const char* name = "buffers";  // for messages and statistics
  };

  // Maps the arena (HugePageMemory); memory is touched only as buffers are first used. Without headroom
  // every buffer of a multiple of 2 MiB begins on a huge page. kInvalid for impossible options, kNoMemory.
  static Result<std::unique_ptr<BufferPool>> Create(const Options& options);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Waits until a buffer is free, behind those who wait already. The caller holds no lock that a completion needs.
  Buffer Allocate() EXCLUDES(mutex_);
  // Empty when none is free, or when somebody waits.
  Buffer TryAllocate() EXCLUDES(mutex_);

  // Append buffers until `buffers` holds `count`, at most capacity(). Fill waits, in turn, until all missing ones are
  // free and takes them at once, so callers that hold no other buffer of the pool cannot deadlock. Meanwhile it calls
  // `relieve`, without locks, every 100 ms. TryFill takes the free ones, and returns false if they are too few; none
  // when somebody waits.
  void Fill(size_t count, std::vector<Buffer>* buffers, const std::function<void()>& relieve = {}) EXCLUDES(mutex_);
  bool TryFill(size_t count, std::vector<Buffer>* buffers) EXCLUDES(mutex_);

  bool AnyWaits() const EXCLUDES(mutex_);  // for buffers
  size_t capacity() const { return options_.count; }
  size_t in_use() const EXCLUDES(mutex_);
  ByteCount buffer_size() const { return options_.buffer_size; }

 private:
  friend class Buffer;
  explicit BufferPool(const Options& options);
  size_t stride() const;  // bytes from one buffer to the next
  Buffer TakeLocked() REQUIRES(mutex_);
  void WaitLocked(size_t count, const std::function<void()>& relieve, MutexLock& lock) REQUIRES(mutex_);
  void Release(Buffer::Slot* slot) EXCLUDES(mutex_);

  const Options options_;
  HugePageMemory arena_;
  std::unique_ptr<Buffer::Slot[]> slots_;
  mutable Mutex mutex_;
  std::condition_variable freed_;
  std::list<size_t> waiting_ GUARDED_BY(mutex_);  // the counts of those who wait, in turn
  std::vector<Buffer::Slot*> free_ GUARDED_BY(mutex_);  // last in, first out: the warmest memory first
};

}  // namespace weightfs
