// SPDX-License-Identifier: Apache-2.0
// Memory for transfers. Private to remote/.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>

#include "common/make_error.h"

namespace weightfs::remote {

inline constexpr uint64_t kTransferMemory = 256 << 20;  // of the parts of a push or pull that are under way

// Returns zeroed, page-aligned memory of at least `size` bytes. The pages are allocated when they are first used, as
// huge ones where the kernel has some. Fails with kNoMemory.
inline Result<std::shared_ptr<std::byte>> AllocatePages(uint64_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return MakeError(ErrorCode::kNoMemory, "the transfer needs {} MiB of memory", (size >> 20) + 1);
  }
  madvise(memory, size, MADV_HUGEPAGE);  // a hint
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [size](std::byte* start) { munmap(start, size); });
}

}  // namespace weightfs::remote
