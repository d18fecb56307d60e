// SPDX-License-Identifier: Apache-2.0
#include "hdf5/gpu_memory.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "client/gpu/cuda.h"
#include "common/mutex.h"

namespace weightfs::hdf5 {
namespace {

// The program break at load time; the heap grows upward from it.
const void* const first_break = sbrk(0);

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

// Returns NVIDIA's driver, which is never released, if this process has loaded its library. Otherwise null.
const client::Cuda* FindCuda() {
  static auto* const mutex = new Mutex();
  static auto* const cuda = new std::shared_ptr<const client::Cuda>();
  const MutexLock lock(*mutex);
  const char* named = std::getenv("WEIGHTFS_CUDA_LIBRARY");
  void* library = dlopen(named != nullptr && *named != '\0' ? named : "libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library != nullptr && *cuda == nullptr) {
    if (auto loaded = client::Cuda::Load(); loaded.has_value()) *cuda = *std::move(loaded);
  }
  if (library != nullptr) dlclose(library);
  return cuda->get();
}

}  // namespace

bool IsGpuMemory(const void* address) {
  static std::atomic<uint64_t> searched_objects{0};  // objects loaded at the last search for the library
  static std::atomic<const client::Cuda*> known{nullptr};
  if (known.load(std::memory_order_acquire) == nullptr) {
    const uint64_t objects = CountLoadedObjects();
    if (objects == searched_objects.load(std::memory_order_relaxed)) return false;
    if (const client::Cuda* found = FindCuda()) known.store(found, std::memory_order_release);
    searched_objects.store(objects, std::memory_order_relaxed);
  }
  const client::Cuda* const cuda = known.load(std::memory_order_acquire);
  if (cuda == nullptr || (address >= first_break && address < sbrk(0))) return false;
  return cuda->DeviceOf(reinterpret_cast<uintptr_t>(address)).has_value();
}

}  // namespace weightfs::hdf5
