// SPDX-License-Identifier: Apache-2.0
// What happens when an allocation fails.
#pragma once

#include <functional>

#include "common/result.h"

namespace weightfs {

// From now on, an allocation of this process that fails writes a line to standard error and ends the process, as a kill
// does: the code around it may be in the middle of any change. Programs call it at their start, before other threads
// exist; the libraries that other programs load do not.
void EndWhenOutOfMemory();

// For memory whose size a request chooses: calls `allocate`, which must leave everything as it was if it throws, and in
// which an allocation that fails throws std::bad_alloc instead. Returns kNoMemory if that happens. Not nested.
Result<void> TryAllocate(const std::function<void()>& allocate);

}  // namespace weightfs
