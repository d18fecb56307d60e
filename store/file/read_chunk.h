// SPDX-License-Identifier: Apache-2.0
// A piece of a file in memory, which is being loaded or was loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/units.h"
#include "io/buffer.h"

namespace weightfs {

inline constexpr uint64_t kChunkBytes = 2 * kMiB;

// One verified, aligned piece of a file, kChunkBytes long. It is loading at first, then ready or failed forever.
// Thread-safe.
class ReadChunk {
 public:
  explicit ReadChunk(Buffer buffer) : buffer_(std::move(buffer)) {}

  // Runs `done` when loading has ended: at once if it has, else on a completion thread.
  void WhenReady(std::function<void()> done) EXCLUDES(mutex_);
  // Waits until loading has ended. Returns its result.
  Result<void> Wait() EXCLUDES(mutex_);
  // Ends the loading. `bad` lists the parts of the buffer that could not be filled.
  void Finish(Result<void> result, std::vector<std::span<const std::byte>> bad) EXCLUDES(mutex_);
  // Checks after WhenReady whether `bytes` of the buffer are good.
  Result<void> Check(std::span<const std::byte> bytes) const EXCLUDES(mutex_);
  bool ready() const EXCLUDES(mutex_);  // the whole chunk is good
  const Buffer& buffer() const { return buffer_; }

 private:
  const Buffer buffer_;
  mutable Mutex mutex_;
  bool finished_ GUARDED_BY(mutex_) = false;
  Result<void> result_ GUARDED_BY(mutex_);
  std::vector<std::span<const std::byte>> bad_ GUARDED_BY(mutex_);
  std::vector<std::function<void()>> waiters_ GUARDED_BY(mutex_);
};

using ChunkPtr = std::shared_ptr<ReadChunk>;

}  // namespace weightfs
