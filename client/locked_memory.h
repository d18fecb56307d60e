// SPDX-License-Identifier: Apache-2.0
// Page-aligned memory that stays in RAM: mlocked, in huge pages where the kernel gives them. O_DIRECT needs
// no copy for it.
#pragma once

#include <cstddef>
#include <memory>

#include "client/export.h"
#include "common/error.h"

namespace weightfs::client {

// Immutable but for Unlock, which is thread-safe. While locked it is in the process's list that IsLocked
// looks at.
class WEIGHTFS_EXPORT LockedMemory {
 public:
  // Zeroed. ENOMEM or EPERM with RLIMIT_MEMLOCK and its value when the limit is too low.
  static Result<std::shared_ptr<LockedMemory>> Allocate(size_t size);
  ~LockedMemory();
  LockedMemory(const LockedMemory&) = delete;
  LockedMemory& operator=(const LockedMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // Gives the lock back at once, and leaves the list; the memory stays until the last owner is gone. False
  // when it had.
  bool Unlock();

 private:
  LockedMemory() = default;
  std::byte* data_ = nullptr;  // 2 MiB-aligned when it is that large
  size_t size_ = 0;            // as asked for
  size_t mapped_ = 0;
};

// True when all of [data, data + size) is inside one locked region of this process, whoever made it. At most
// one byte is looked for when size is 0.
WEIGHTFS_EXPORT bool IsLocked(const void* data, size_t size);
// The locked region that begins at `data`; null when there is none.
WEIGHTFS_EXPORT std::shared_ptr<LockedMemory> FindLocked(const void* data);

}  // namespace weightfs::client
