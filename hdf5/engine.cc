// SPDX-License-Identifier: Apache-2.0
#include "hdf5/engine.h"

#include "common/result.h"

namespace weightfs::hdf5 {

Engine& Engine::Shared() {
  // Never destroyed: at exit, the handles' threads may run code that the process unloads.
  static auto* const engine = new Engine();
  return *engine;
}

Result<std::shared_ptr<client::Handle>> Engine::Get(const Settings& settings) {
  const MutexLock lock(mutex_);
  DropParentHandlesLocked();
  // Settings that a handle does not use are not part of the key.
  Settings key;
  key.num_threads = settings.num_threads;
  key.block_size = settings.block_size;
  key.queue_depth = settings.queue_depth;
  key.direct = settings.direct;
  auto& handle = handles_[key];
  if (handle == nullptr) {
    auto created = client::Handle::Create({.block_size = key.block_size,
                                           .queue_depth = key.queue_depth,
                                           .intra_op_parallelism = key.num_threads,
                                           .direct = key.direct});
    if (!created.has_value()) {
      handles_.erase(key);
      return std::move(created).error();
    }
    handle = *std::move(created);
  }
  return handle;
}

void Engine::Clear() {
  const MutexLock lock(mutex_);
  DropParentHandlesLocked();
  for (const auto& [settings, handle] : handles_) ended_operations_ += handle->direct_operations();
  handles_.clear();
}

uint64_t Engine::direct_operations() const {
  const MutexLock lock(mutex_);
  if (owner_ != getpid()) return 0;  // these are the operations of the parent
  uint64_t count = ended_operations_;
  for (const auto& [settings, handle] : handles_) count += handle->direct_operations();
  return count;
}

void Engine::DropParentHandlesLocked() {
  if (owner_ == getpid()) return;
  // Only the parent has their threads; the destructor of a handle checks this.
  handles_.clear();
  ended_operations_ = 0;
  owner_ = getpid();
}

}  // namespace weightfs::hdf5
