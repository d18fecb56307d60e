// SPDX-License-Identifier: Apache-2.0
// What happens when an allocation fails.
#pragma once

#include <new>
#include <utility>

#include "common/result.h"

namespace weightfs {

// From now on, an allocation of this process that fails writes a line to standard error and ends the process, as a kill
// does: the code around it may be in the middle of any change. Programs call it at their start, before other threads
// exist; the libraries that other programs load do not.
void EndWhenOutOfMemory();

// While an object lives, an allocation of its thread that fails throws std::bad_alloc instead. Not nested.
class AllocationMayFail {
 public:
  AllocationMayFail();
  ~AllocationMayFail();
  AllocationMayFail(const AllocationMayFail&) = delete;
  AllocationMayFail& operator=(const AllocationMayFail&) = delete;
};

// For memory whose size a request chooses: calls `allocate`, which must leave everything as it was if it throws.
// Returns kNoMemory if it runs out of memory.
template <typename Allocate>
Result<void> TryAllocate(Allocate&& allocate) {
  try {
    const AllocationMayFail scope;
    std::forward<Allocate>(allocate)();
    return {};
  } catch (const std::bad_alloc&) {
    return ErrorCode::kNoMemory;
  }
}

}  // namespace weightfs
