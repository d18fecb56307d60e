// SPDX-License-Identifier: Apache-2.0
// Tests whether an address is in GPU memory.
#pragma once

#include <cstdint>

namespace weightfs::hdf5 {

// CUDA's default stream. H5Dread and H5Dwrite have no stream of their own, so they wait for it as cudaMemcpy does: after
// all work of the default stream, and of the streams that synchronize with it.
constexpr uintptr_t kLegacyStream = 0;

// Thread-safe. A process that has not loaded NVIDIA's driver library has no GPU memory; the check that it has loaded
// nothing since takes a fraction of a microsecond. Otherwise the driver is queried, except for addresses on the heap.
bool IsGpuMemory(const void* address);

}  // namespace weightfs::hdf5
