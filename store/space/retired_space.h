// SPDX-License-Identifier: Apache-2.0
// Blocks that no file maps any more, until the readers that may still use them have left.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "common/assert.h"
#include "common/units.h"
#include "engine/extent_allocator.h"

namespace weightfs {

// Externally synchronized (SpaceManager::mutex_). Each addition ends a read epoch and begins the next one.
class RetiredSpace {
 public:
  uint64_t EnterRead() {
    ++readers_.back();
    return Current();
  }
  void LeaveRead(uint64_t epoch) {
    WEIGHTFS_ASSERT(epoch >= first_epoch_ && readers_[epoch - first_epoch_] > 0);
    --readers_[epoch - first_epoch_];
  }

  void Add(std::vector<DeviceRun> runs) {
    if (runs.empty()) return;
    waiting_ += BlocksOf(runs);
    retired_.push_back({Current(), std::move(runs)});
    readers_.push_back(0);
  }
  // True if there are blocks whose readers have left.
  bool HasReady() {
    while (readers_.size() > 1 && readers_.front() == 0) {
      readers_.pop_front();
      ++first_epoch_;
    }
    return !retired_.empty() && retired_.front().after < first_epoch_;
  }
  // Returns the oldest of them, nullopt if there are none. They count as waiting until Freed.
  std::optional<std::vector<DeviceRun>> TakeReady() {
    if (!HasReady()) return std::nullopt;
    std::optional runs(std::move(retired_.front().runs));
    retired_.pop_front();
    return runs;
  }
  void Freed(BlockCount count) { waiting_ -= count; }
  BlockCount waiting() const { return waiting_; }

 private:
  struct Retired {
    uint64_t after;  // the last read epoch that may read them
    std::vector<DeviceRun> runs;
  };
  uint64_t Current() const { return first_epoch_ + readers_.size() - 1; }

  // readers_[i] counts the readers of epoch first_epoch_ + i; the last epoch is the current one.
  std::deque<uint32_t> readers_ = {0};
  uint64_t first_epoch_ = 1;
  std::deque<Retired> retired_;
  BlockCount waiting_;
};

}  // namespace weightfs
