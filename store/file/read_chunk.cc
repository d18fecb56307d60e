// SPDX-License-Identifier: Apache-2.0
#include "store/file/read_chunk.h"

#include "common/sync_wait.h"

namespace weightfs {

void ReadChunk::WhenReady(std::function<void()> done) {
  {
    MutexLock lock(mutex_);
    if (!finished_) {
      waiters_.push_back(std::move(done));
      return;
    }
  }
  done();
}

Result<void> ReadChunk::Wait() {
  SyncWait<bool>([this](auto done) { WhenReady([done] { done(true); }); });
  MutexLock lock(mutex_);
  return result_;
}

void ReadChunk::Finish(Result<void> result, std::vector<std::span<const std::byte>> bad) {
  std::vector<std::function<void()>> waiters;
  {
    MutexLock lock(mutex_);
    result_ = std::move(result);
    bad_ = std::move(bad);
    finished_ = true;
    waiters.swap(waiters_);
  }
  for (auto& waiter : waiters) waiter();
}

Result<void> ReadChunk::Check(std::span<const std::byte> bytes) const {
  MutexLock lock(mutex_);
  for (const auto& bad : bad_) {
    if (bad.data() < bytes.data() + bytes.size() && bytes.data() < bad.data() + bad.size()) return result_;
  }
  return {};
}

bool ReadChunk::ready() const {
  MutexLock lock(mutex_);
  return finished_ && result_.has_value();
}

}  // namespace weightfs
