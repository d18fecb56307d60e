// SPDX-License-Identifier: Apache-2.0
// Page-aligned memory that stays in RAM: mlocked, in huge pages if the kernel provides them. O_DIRECT uses it without a
// copy.
#pragma once

#include <cstddef>
#include <memory>

#include "client/export.h"
#include "common/error.h"

namespace weightfs {

class HugePageMemory;

namespace client {

// Immutable, except for Unlock, which is thread-safe. While it is locked, it is in the process-wide list that IsLocked
// and FindLocked search.
class WEIGHTFS_EXPORT LockedMemory {
 public:
  // Returns zeroed memory. ENOMEM or EPERM, with the value of RLIMIT_MEMLOCK, if that limit is too low.
  static Result<std::shared_ptr<LockedMemory>> Allocate(size_t size);
  ~LockedMemory();
  LockedMemory(const LockedMemory&) = delete;
  LockedMemory& operator=(const LockedMemory&) = delete;

  std::byte* data() const;
  size_t size() const { return size_; }
  // Unlocks the memory at once and removes it from the list; the memory itself stays until the last owner is gone.
  // Returns false if it was unlocked already.
  bool Unlock();

 private:
  LockedMemory(HugePageMemory mapped, size_t size);

  const std::unique_ptr<const HugePageMemory> mapped_;
  const size_t size_;  // as requested
};

// True if all of [data, data + size) is inside one locked region of this process, regardless of who allocated it. A
// size of 0 looks for at most one byte.
WEIGHTFS_EXPORT bool IsLocked(const void* data, size_t size);
// The locked region that begins at `data`, or null.
WEIGHTFS_EXPORT std::shared_ptr<LockedMemory> FindLocked(const void* data);

}  // namespace client
}  // namespace weightfs
