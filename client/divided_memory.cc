// SPDX-License-Identifier: Apache-2.0
#include "client/divided_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <utility>

#include "common/assert.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

constexpr size_t kLarge = 4 * kMiB;  // mapping and unmapping less costs more than huge pages gain
constexpr size_t kAlignment = 64;    // a cache line, and torch's alignment

std::atomic<size_t> mappings_of_files{0};

size_t MostMappingsOfFiles() {
  static const size_t most = [] {
    size_t all = 65530;  // Linux' default
    std::ifstream("/proc/sys/vm/max_map_count") >> all;
    return all / 4;
  }();
  return most;
}

}  // namespace

Result<std::shared_ptr<DividedMemory>> DividedMemory::Allocate(size_t size) {
  HugePageMemory large;
  SmallMemory small;
  if (size >= kLarge) {
    auto mapped = HugePageMemory::Map(size);
    if (!mapped) return mapped.error();
    large = std::move(*mapped);
  } else {
    const size_t allocated = RoundUp(std::max<size_t>(size, 1), kAlignment);
    small.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, allocated)));
    if (small == nullptr) return Error{ErrorCode::kNoMemory, fmt::format("cannot allocate {} bytes of memory", size)};
  }
  return std::shared_ptr<DividedMemory>(new DividedMemory(std::move(large), std::move(small), size));
}

Result<std::shared_ptr<DividedMemory>> DividedMemory::Map(int file, uint64_t offset, size_t size) {
  if (mappings_of_files >= MostMappingsOfFiles()) {
    return Error{ErrorCode::kNoMemory, "too many parts of files are mapped"};
  }
  ASSIGN_OR_RETURN(HugePageMemory mapped, HugePageMemory::MapFile(file, offset, size));
  ++mappings_of_files;
  return std::shared_ptr<DividedMemory>(new DividedMemory(std::move(mapped), {}, size, /*of_file=*/true));
}

DividedMemory::~DividedMemory() {
  if (of_file_) --mappings_of_files;
}

std::shared_ptr<DividedMemory::Part> DividedMemory::Take(size_t begin, size_t size) {
  WEIGHTFS_ASSERT(size > 0 && begin <= size_ && size <= size_ - begin);
  return std::shared_ptr<Part>(new Part(shared_from_this(), data() + begin, size));
}

void DividedMemory::Free(const std::byte* data, size_t size) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));  // madvise(2) rounds a length up to it
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t end = begin + size;
  uintptr_t first = 0;
  uintptr_t last = 0;
  {
    const MutexLock lock(mutex_);
    freed_.MergeAround(freed_.Insert(begin, end, {}), [](auto, auto) { return true; });
    const auto& [freed_begin, freed] = *freed_.FirstFrom(begin);
    first = std::max(RoundDown(begin, page), RoundUp(freed_begin, page));
    last = std::min(RoundUp(end, page), RoundDown(freed.end, page));
  }
  // Advice: pages that cannot be given back, such as locked ones, stay until the memory is freed.
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace weightfs::client
