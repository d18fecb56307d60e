// SPDX-License-Identifier: Apache-2.0
// A GPU for tests on machines without one: a shared library with the functions of CUDA's driver and of cuFile that
// handles use, operating on host memory. WEIGHTFS_CUDA_LIBRARY and WEIGHTFS_CUFILE_LIBRARY name it.
//
// The memory of its two GPUs is mapped twice: at the address that programs get, where every access crashes and the
// kernel reads and writes nothing, and at an address that only this library knows. Streams are threads, so copies
// really run asynchronously. The tests, including those in Python, call the functions below; all are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Allocates memory of GPU `ordinal` and returns its address on the GPU.
uint64_t fake_gpu_allocate(size_t size, int ordinal);
void fake_gpu_free(uint64_t address);
void fake_gpu_poke(uint64_t address, const void* bytes, size_t size);
void fake_gpu_peek(uint64_t address, void* bytes, size_t size);

// After `after` calls of the function (CUDA's or cuFile's name), the next `times` calls return `status`. For cuFileRead
// and cuFileWrite `status` is the return value; with -1, errno is EIO.
void fake_gpu_fail(const char* function, int after, int times, int status);
// The copy after the next `after` ones fails with `status` when it is carried out, not when it is started.
void fake_gpu_fail_copy(int after, int status);
// cuFile transfers at most this many bytes at once; 0: no limit.
void fake_gpu_limit_transfers(size_t bytes);
// Sets the bits of what cuFile reports to access directly; 0: compatibility mode. Takes effect when a driver is opened
// next.
void fake_gpu_set_kinds(unsigned kinds);
// Sets the number of GPUs for later queries.
void fake_gpu_set_devices(int count);
// Puts work into the default stream of a GPU: when fake_gpu_release is called, the bytes are written to that memory.
// fake_gpu_release returns when that is done. Other streams continue.
void fake_gpu_hold_default_stream(int ordinal, uint64_t address, const void* bytes, size_t size);
void fake_gpu_release(void);
// While a graph is captured (`stream` is 0 or the stream that is captured), calls that CUDA forbids in the strict capture
// mode fail with status 900 and count as mistakes, on every thread that has not chosen the relaxed mode.
void fake_gpu_capture(uint64_t stream);
void fake_gpu_end_capture(void);
// No copy ends before `count` copies were under way at once, or before nothing was started for half a minute.
void fake_gpu_await_copies(unsigned count);
// Resets everything; nothing may be under way.
void fake_gpu_reset(void);

struct FakeGpuCounts {
  uint64_t copies_to_gpu, copies_to_host;
  uint64_t copies_of_unlocked_memory;
  uint64_t most_copies_at_once;
  uint64_t cufile_reads, cufile_writes;
  uint64_t pinned_transfers;  // transfers of pinned memory, by its base address
  // Numbers of existing objects:
  uint64_t contexts, streams, events, page_locks, files, pins;
  // Forbidden uses: calls without a context, with freed objects, or outside of allocated memory.
  uint64_t mistakes;
};
void fake_gpu_count(FakeGpuCounts* counts);
// The number of contexts on the calling thread's stack.
int fake_gpu_context_depth(void);
}
