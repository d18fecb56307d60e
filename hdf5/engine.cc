// SPDX-License-Identifier: Apache-2.0
#include "hdf5/engine.h"

#include <utility>

#include "common/result.h"

namespace weightfs::hdf5 {

Engine& Engine::Shared() {
  // Never destroyed: threads of handles would end while the process unloads what they run.
  static auto* const engine = new Engine();
  return *engine;
}

Result<std::shared_ptr<client::Handle>> Engine::Get(const Settings& settings) {
  const MutexLock lock(mutex_);
  LeaveParentsBehindLocked();
  // What the handle does not look at makes no other handle.
  Settings key;
  key.num_threads = settings.num_threads;
  key.block_size = settings.block_size;
  key.queue_depth = settings.queue_depth;
  key.direct = settings.direct;
  auto& handle = handles_[key];
  if (handle == nullptr) {
    auto made = client::Handle::Create({.block_size = key.block_size,
                                        .queue_depth = key.queue_depth,
                                        .intra_op_parallelism = key.num_threads,
                                        .direct = key.direct});
    if (!made.has_value()) {
      handles_.erase(key);
      return std::move(made).error();
    }
    handle = *std::move(made);
  }
  return handle;
}

void Engine::Clear() {
  const MutexLock lock(mutex_);
  LeaveParentsBehindLocked();
  for (const auto& [settings, handle] : handles_) ended_operations_ += handle->direct_operations();
  handles_.clear();
}

uint64_t Engine::direct_operations() const {
  const MutexLock lock(mutex_);
  uint64_t count = ended_operations_;
  for (const auto& [settings, handle] : handles_) count += handle->direct_operations();
  return count;
}

void Engine::LeaveParentsBehindLocked() {
  if (owner_ == getpid()) return;
  // Their threads are not in this process; the destructors of handles know that.
  handles_.clear();
  ended_operations_ = 0;
  owner_ = getpid();
}

}  // namespace weightfs::hdf5
