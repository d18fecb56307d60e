// SPDX-License-Identifier: Apache-2.0
#include "remote/pages.h"

#include <fmt/format.h>
#include <sys/mman.h>

namespace weightfs::remote {

Result<std::shared_ptr<std::byte>> AllocatePages(uint64_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Error{ErrorCode::kNoMemory, fmt::format("the transfer needs {} MiB of memory", (size >> 20) + 1)};
  }
  madvise(memory, size, MADV_HUGEPAGE);  // a hint
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [size](std::byte* start) { munmap(start, size); });
}

}  // namespace weightfs::remote
