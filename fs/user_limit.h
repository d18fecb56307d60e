// SPDX-License-Identifier: Apache-2.0
// A limit of what each user holds of one resource. Private to fs/.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "common/mutex.h"

namespace weightfs {

// Thread-safe.
class UserLimit {
 public:
  explicit UserLimit(uint64_t limit) : limit_(limit) {}

  struct GiveBack {
    uint32_t user = 0;
    uint64_t amount = 0;
    void operator()(UserLimit* limit) const { limit->Give(user, amount); }
  };
  // Gives an amount back on destruction. The limit outlives it.
  using Share = std::unique_ptr<UserLimit, GiveBack>;

  // Returns nullopt if the user would hold more than the limit. Nothing (an empty value) is always granted, and not
  // recorded: held_ has only the users who hold something.
  std::optional<Share> Take(uint32_t user, uint64_t amount = 1) EXCLUDES(mutex_) {
    if (amount == 0) return Share();
    MutexLock lock(mutex_);
    const auto known = held_.find(user);
    if (amount > limit_ - (known == held_.end() ? 0 : known->second)) return std::nullopt;
    held_[user] += amount;
    return Share(this, GiveBack{user, amount});
  }

 private:
  void Give(uint32_t user, uint64_t amount) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto held = held_.find(user);
    held->second -= amount;
    if (held->second == 0) held_.erase(held);
  }

  const uint64_t limit_;
  Mutex mutex_;
  std::unordered_map<uint32_t, uint64_t> held_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
