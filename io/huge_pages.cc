// SPDX-License-Identifier: Apache-2.0
#include "io/huge_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "common/units.h"

namespace weightfs {

Result<HugePageMemory> HugePageMemory::Map(size_t size, int flags) {
  if (size > std::numeric_limits<size_t>::max() / 2) {
    return Error{ErrorCode::kNoMemory, fmt::format("cannot map {} bytes of memory", size)};
  }
  HugePageMemory memory;
  memory.size_ = std::max(RoundUp(size, kBlockSize), kBlockSize);
  // One extra huge page is mapped, and the unaligned ends are unmapped.
  const size_t spare = memory.size_ >= kHugePageSize ? kHugePageSize : 0;
  void* mapped =
      mmap(nullptr, memory.size_ + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (mapped == MAP_FAILED) {
    return Error{ErrorCode{errno},
                 fmt::format("cannot map {} bytes of memory: {}", memory.size_, std::strerror(errno))};
  }
  memory.data_ = static_cast<std::byte*>(mapped);
  if (spare == 0) return memory;
  const auto address = reinterpret_cast<uintptr_t>(mapped);
  const size_t before = RoundUp(address, kHugePageSize) - address;
  memory.data_ += before;
  if (before > 0) munmap(mapped, before);
  munmap(memory.data_ + memory.size_, spare - before);
  if (madvise(memory.data_, memory.size_, MADV_HUGEPAGE) != 0) memory.advice_error_ = errno;
  return memory;
}

Result<HugePageMemory> HugePageMemory::MapFile(int file, uint64_t offset, size_t size) {
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) {
    return Error{ErrorCode{errno}, fmt::format("cannot map {} bytes of a file: {}", size, std::strerror(errno))};
  }
  HugePageMemory memory;
  memory.data_ = static_cast<std::byte*>(mapped);
  memory.size_ = RoundUp(size, kBlockSize);
  return memory;
}

}  // namespace weightfs
