// SPDX-License-Identifier: Apache-2.0
#include "client/locked_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>

#include "common/mutex.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

constexpr size_t kHugePageSize = 2 * kMiB;

// Locked regions by address. The list is global, because memory is locked per process.
struct Regions {
  Mutex mutex;
  struct Region {
    size_t size;
    std::weak_ptr<LockedMemory> memory;
  };
  std::map<uintptr_t, Region> by_address GUARDED_BY(mutex);
};

Regions& TheRegions() {
  // Never destroyed, because memory may be freed during process exit.
  static auto* regions = new Regions;
  return *regions;
}

Error LockError(size_t size, int error_number) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string allowed = limit.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{} bytes", limit.rlim_cur);
  return {ErrorCode{error_number},
          fmt::format("cannot lock {} bytes of memory: {}; RLIMIT_MEMLOCK is {}: raise it with 'ulimit -l' or in "
                      "/etc/security/limits.conf, or use ordinary tensors",
                      size, std::strerror(error_number), allowed)};
}

}  // namespace

Result<std::shared_ptr<LockedMemory>> LockedMemory::Allocate(size_t size) {
  if (size > std::numeric_limits<size_t>::max() / 2) return LockError(size, ENOMEM);
  std::shared_ptr<LockedMemory> memory(new LockedMemory);
  const size_t mapped = std::max(RoundUp(size, kBlockSize), kBlockSize);
  // Large memory begins on a huge page: one extra huge page is mapped, and the unaligned ends are unmapped.
  const size_t spare = mapped >= kHugePageSize ? kHugePageSize : 0;
  void* raw = mmap(nullptr, mapped + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) {
    return Error{ErrorCode{errno}, fmt::format("cannot map {} bytes of memory: {}", mapped, std::strerror(errno))};
  }
  auto* first = static_cast<std::byte*>(raw);
  if (spare > 0) {
    const auto address = reinterpret_cast<uintptr_t>(first);
    const size_t before = RoundUp(address, kHugePageSize) - address;
    if (before > 0) munmap(first, before);
    munmap(first + before + mapped, spare - before);
    first += before;
    // If madvise fails, ordinary pages are used.
    madvise(first, mapped, MADV_HUGEPAGE);
  }
  memory->data_ = first;
  memory->size_ = size;
  memory->mapped_ = mapped;
  if (mlock(first, mapped) != 0) return LockError(size, errno);
  Regions& regions = TheRegions();
  const MutexLock lock(regions.mutex);
  regions.by_address[reinterpret_cast<uintptr_t>(first)] = {size, memory};
  return memory;
}

LockedMemory::~LockedMemory() {
  Unlock();
  if (data_ != nullptr) munmap(data_, mapped_);
}

bool LockedMemory::Unlock() {
  Regions& regions = TheRegions();
  const MutexLock lock(regions.mutex);
  if (regions.by_address.erase(reinterpret_cast<uintptr_t>(data_)) == 0) return false;
  munlock(data_, mapped_);
  return true;
}

bool IsLocked(const void* data, size_t size) {
  Regions& regions = TheRegions();
  const MutexLock lock(regions.mutex);
  const auto address = reinterpret_cast<uintptr_t>(data);
  auto after = regions.by_address.upper_bound(address);
  if (after == regions.by_address.begin()) return false;
  const auto& [begin, region] = *std::prev(after);
  const size_t wanted = std::max<size_t>(size, 1);
  return wanted <= region.size && address - begin <= region.size - wanted;
}

std::shared_ptr<LockedMemory> FindLocked(const void* data) {
  Regions& regions = TheRegions();
  const MutexLock lock(regions.mutex);
  const auto found = regions.by_address.find(reinterpret_cast<uintptr_t>(data));
  return found == regions.by_address.end() ? nullptr : found->second.memory.lock();
}

}  // namespace weightfs::client
