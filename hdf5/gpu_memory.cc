// SPDX-License-Identifier: Apache-2.0
#include "hdf5/gpu_memory.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdlib>

namespace weightfs::hdf5 {
namespace {

// Returns how many objects this process has loaded so far.
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

// The program break at load time; the heap grows upward from it.
const void* const first_break = sbrk(0);

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
    FindLibrary(objects);
    cuda = known_.load(std::memory_order_acquire);
    if (cuda == nullptr) return false;
  }
  if (address >= first_break && address < sbrk(0)) return false;
  return cuda->DeviceOf(reinterpret_cast<uintptr_t>(address)).has_value();
}

void GpuMemory::FindLibrary(uint64_t objects) {
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
