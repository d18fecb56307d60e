// SPDX-License-Identifier: Apache-2.0
// Tests whether an address is in GPU memory.
#pragma once

#include <atomic>

#include "client/gpu/cuda.h"
#include "common/mutex.h"

namespace weightfs::hdf5 {

// CUDA's default stream. H5Dread and H5Dwrite have no stream of their own, so they wait for it as cudaMemcpy does: after
// all work of the default stream, and of the streams that synchronize with it.
constexpr uintptr_t kLegacyStream = 0;

// Thread-safe. A process that has not loaded NVIDIA's driver library has no GPU memory; the check that it has loaded
// nothing since takes a fraction of a microsecond. Otherwise the driver is queried, except for addresses on the heap.
class GpuMemory {
 public:
  bool Holds(const void* address);
  static GpuMemory& Shared();

 private:
  void FindLibrary(uint64_t objects) EXCLUDES(mutex_);

  std::atomic<uint64_t> objects_{0};  // objects loaded at the last search for the library
  std::atomic<const client::Cuda*> known_{nullptr};
  Mutex mutex_;
  std::shared_ptr<const client::Cuda> cuda_ GUARDED_BY(mutex_);  // never released, because known_ points to it
};

}  // namespace weightfs::hdf5
