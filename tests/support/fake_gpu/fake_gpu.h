// SPDX-License-Identifier: Apache-2.0
// A GPU for tests on machines without one: a shared library with the functions of CUDA's driver and of cuFile that
// handles use, over memory of the host. WEIGHTFS_CUDA_LIBRARY and WEIGHTFS_CUFILE_LIBRARY name it.
//
// Its two GPUs' memory is mapped twice: at the address that programs get, where every touch crashes and the kernel
// reads and writes nothing, and at one that this library alone knows. Streams are threads, so that copies are under way
// until they are done. These functions are for the tests, Python's too; all are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Memory of GPU `ordinal`; its address on the GPU.
uint64_t fake_gpu_allocate(size_t size, int ordinal);
void fake_gpu_free(uint64_t address);
void fake_gpu_poke(uint64_t address, const void* bytes, size_t size);
void fake_gpu_peek(uint64_t address, void* bytes, size_t size);

// The next `times` calls of the function (CUDA's or cuFile's name) but for the first `after` ones answer `status`.
// Those of cuFileRead and cuFileWrite return it; with -1, errno is EIO.
void fake_gpu_fail(const char* function, int after, int times, int status);
// A copy fails with `status` when it is carried out, and not when it is started: after so many others.
void fake_gpu_fail_copy(int after, int status);
// cuFile transfers at most so many bytes at once; 0: any number.
void fake_gpu_limit_transfers(size_t bytes);
// What cuFile says it reaches directly, as bits; 0: compatibility mode. Of the next open driver.
void fake_gpu_set_kinds(unsigned kinds);
// How many GPUs there are, from the next look on.
void fake_gpu_set_devices(int count);
// Puts work into the default stream of a GPU: the bytes are written to the memory there once fake_gpu_release is
// called, which returns when it is done. What is in other streams goes on.
void fake_gpu_hold_default_stream(int ordinal, uint64_t address, const void* bytes, size_t size);
void fake_gpu_release(void);
// No copy ends before so many were under way at once, or nothing more was started for half a minute.
void fake_gpu_await_copies(unsigned count);
// Everything as in the beginning; nothing may be under way.
void fake_gpu_reset(void);

struct FakeGpuCounts {
  uint64_t copies_to_gpu, copies_to_host;
  uint64_t copies_of_unlocked_memory;
  uint64_t most_copies_at_once;
  uint64_t cufile_reads, cufile_writes;
  uint64_t pinned_transfers;  // of memory that is pinned, by its base
  // Now in existence:
  uint64_t contexts, streams, events, page_locks, files, pins;
  // What no program may do: calls without a context, with freed objects, outside of memory.
  uint64_t mistakes;
};
void fake_gpu_count(FakeGpuCounts* counts);
// The contexts on the calling thread's stack.
int fake_gpu_context_depth(void);
}
