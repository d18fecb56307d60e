// SPDX-License-Identifier: Apache-2.0
#include "common/out_of_memory.h"

#include <signal.h>
#include <unistd.h>

#include <new>
#include <string_view>

namespace weightfs {
namespace {

thread_local bool may_fail = false;

// Allocates nothing. SIGKILL, because every parent and service manager knows it from the kernel's own out-of-memory
// killer; exit codes have other meanings, and SIGABRT would dump a core as large as the memory.
void OnOutOfMemory() {
  if (may_fail) throw std::bad_alloc();
  constexpr std::string_view kLine =
      "weightfs: critical: out of memory: this process ends as if it were killed. Committed data is not lost: free "
      "memory or raise its limit, and mount the store or run the command again\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine.data(), kLine.size());
  raise(SIGKILL);
}

}  // namespace

void EndWhenOutOfMemory() { std::set_new_handler(OnOutOfMemory); }

Result<void> TryAllocate(const std::function<void()>& allocate) {
  Result<void> result;
  may_fail = true;
  try {
    allocate();
  } catch (const std::bad_alloc&) {
    result = ErrorCode::kNoMemory;
  }
  may_fail = false;
  return result;
}

}  // namespace weightfs
