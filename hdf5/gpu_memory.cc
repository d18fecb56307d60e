// SPDX-License-Identifier: Apache-2.0
#include "hdf5/gpu_memory.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace weightfs::hdf5 {
namespace {

// How many objects this process has loaded so far.
uint64_t CountLoadedObjects() {
  uint64_t count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<uint64_t*>(out) = info->dlpi_adds;
        return 1;
      },
      &count);
  return count;
}

// Where the heap began when this library was loaded, or before.
const void* const heap_begin = sbrk(0);

}  // namespace

GpuMemory& GpuMemory::Shared() {
  static auto* const shared = new GpuMemory();
  return *shared;
}

bool GpuMemory::Holds(const void* address) {
  const client::Cuda* cuda = known_.load(std::memory_order_acquire);
  if (cuda == nullptr) {
    const uint64_t objects = CountLoadedObjects();
    if (objects == objects_.load(std::memory_order_relaxed)) return false;
    LookForLibrary(objects);
    cuda = known_.load(std::memory_order_acquire);
    if (cuda == nullptr) return false;
  }
  if (address >= heap_begin && address < sbrk(0)) return false;
  return cuda->DeviceOf(reinterpret_cast<uintptr_t>(address)).has_value();
}

void GpuMemory::LookForLibrary(uint64_t objects) {
  const MutexLock lock(mutex_);
  const char* named = std::getenv("WEIGHTFS_CUDA_LIBRARY");
  void* library = dlopen(named != nullptr && *named != '\0' ? named : "libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library != nullptr && cuda_ == nullptr) {
    if (auto cuda = client::Cuda::Load(); cuda.has_value()) cuda_ = *std::move(cuda);
    known_.store(cuda_.get(), std::memory_order_release);
  }
  if (library != nullptr) dlclose(library);
  objects_.store(objects, std::memory_order_relaxed);
}

}  // namespace weightfs::hdf5
