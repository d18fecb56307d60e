// SPDX-License-Identifier: Apache-2.0
#include "client/locked_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "common/mutex.h"
#include "io/huge_pages.h"

namespace weightfs::client {
namespace {

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
  auto mapped = HugePageMemory::Map(size);
  if (!mapped) return mapped.error();
  if (mlock(mapped->data(), mapped->size()) != 0) return LockError(size, errno);
  std::shared_ptr<LockedMemory> memory(new LockedMemory(std::move(*mapped), size));
  Regions& regions = TheRegions();
  const MutexLock lock(regions.mutex);
  regions.by_address[reinterpret_cast<uintptr_t>(memory->data())] = {size, memory};
  return memory;
}

LockedMemory::LockedMemory(HugePageMemory mapped, size_t size)
    : mapped_(std::make_unique<HugePageMemory>(std::move(mapped))), size_(size) {}

LockedMemory::~LockedMemory() { Unlock(); }

std::byte* LockedMemory::data() const { return mapped_->data(); }

bool LockedMemory::Unlock() {
  Regions& regions = TheRegions();
  const MutexLock lock(regions.mutex);
  if (regions.by_address.erase(reinterpret_cast<uintptr_t>(data())) == 0) return false;
  munlock(mapped_->data(), mapped_->size());
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
