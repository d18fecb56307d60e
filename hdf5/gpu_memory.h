// SPDX-License-Identifier: Apache-2.0
// Whether an address is a GPU's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "client/gpu/cuda.h"
#include "common/mutex.h"

namespace weightfs::hdf5 {

// Thread-safe. In a process that has not loaded NVIDIA's driver library no memory is a GPU's, and to see that nothing
// was loaded since costs a small part of a microsecond. In the others the driver is asked, except for the heap.
class GpuMemory {
 public:
  bool Holds(const void* address);
  static GpuMemory& Shared();

 private:
  void LookForLibrary(uint64_t objects) EXCLUDES(mutex_);

  std::atomic<uint64_t> objects_{0};  // that the process had loaded when the library was looked for
  std::atomic<const client::Cuda*> known_{nullptr};
  Mutex mutex_;
  std::shared_ptr<const client::Cuda> cuda_ GUARDED_BY(mutex_);  // never given up: known_ points to it
};

}  // namespace weightfs::hdf5
