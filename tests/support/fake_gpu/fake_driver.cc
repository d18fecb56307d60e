// SPDX-License-Identifier: Apache-2.0
// What NVIDIA's cuFile asks of CUDA's driver beside the functions of fake_cuda.cc (found by running its versions 1.11 to
// 1.20). Its copies run at once, on the calling thread.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/fake_gpu/gpus.h"

using namespace fake_gpu;

namespace {

constexpr int kComputeMajor = 75;  // CUDA's number of the attribute
constexpr int kHopper = 9;
constexpr size_t kHostPage = 65536;
constexpr size_t kMemoryOfGpu = size_t{8} << 30;
constexpr int kOutOfMemory = 2;
constexpr int kNotSupported = 801;

int AllocateHost(void** memory, size_t size) {
  *memory = std::aligned_alloc(kHostPage, (size + kHostPage - 1) / kHostPage * kHostPage);
  return *memory == nullptr ? kOutOfMemory : 0;
}

int Copy(uint64_t address, std::byte* host, size_t size, bool to_gpu) {
  if (const int status = Enter("cuMemcpy"); status != 0) return status;
  std::byte* hidden = TheFake().Hidden(address, size);
  if (hidden == nullptr) return kInvalidValue;
  std::memcpy(to_gpu ? hidden : host, to_gpu ? host : hidden, size);
  return 0;
}

}  // namespace

extern "C" {

int cuStreamCreate(Stream** handle, unsigned flags);

int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == kComputeMajor ? kHopper : 1;
  return 0;
}
int cuDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<size_t>(size), "0001:%02x:01.0", static_cast<unsigned>(device) + 1);
  return 0;
}
int cuDeviceGetUuid_v2(void* bytes, int device) {
  std::memset(bytes, device + 1, 16);
  return 0;
}
int cuDeviceGetUuid(void* bytes, int device) { return cuDeviceGetUuid_v2(bytes, device); }
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}

int cuCtxGetCurrent(Context** context) {
  *context = Stack().empty() ? nullptr : Stack().back();
  return 0;
}
int cuCtxSetCurrent(Context* context) {
  if (!Stack().empty()) Stack().pop_back();
  if (context != nullptr) Stack().push_back(context);
  return 0;
}
int cuCtxGetDevice(int* device) {
  if (Stack().empty()) return kInvalidContext;
  *device = Stack().back()->ordinal;
  return 0;
}
int cuCtxSynchronize() { return 0; }
int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return 0;
}

int cuMemAlloc_v2(uint64_t* address, size_t size) {
  *address = fake_gpu_allocate(size, Stack().empty() ? 0 : Stack().back()->ordinal);
  return 0;
}
int cuMemFree_v2(uint64_t address) {
  fake_gpu_free(address);
  return 0;
}
int cuMemHostAlloc(void** memory, size_t size, unsigned) { return AllocateHost(memory, size); }
int cuMemAllocHost_v2(void** memory, size_t size) { return AllocateHost(memory, size); }
int cuMemFreeHost(void* memory) {
  std::free(memory);
  return 0;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = *total = kMemoryOfGpu;
  return 0;
}
int cuMemGetAddressRange_v2(uint64_t* begin, size_t* size, uint64_t address) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  uint64_t start = 0;
  const Allocation* allocation = fake.FindLocked(address, 1, &start);
  if (allocation == nullptr) return kInvalidValue;
  if (begin != nullptr) *begin = start;
  if (size != nullptr) *size = allocation->size;
  return 0;
}
// An attribute that an address does not have is 0.
int cuPointerGetAttributes(unsigned count, const int* attributes, void** values, uint64_t address) {
  for (unsigned i = 0; i < count; ++i) {
    if (TheFake().Attribute(values[i], attributes[i], address) != 0) *static_cast<int*>(values[i]) = 0;
  }
  return 0;
}
int cuPointerSetAttribute(const void*, int, uint64_t) { return 0; }

// The const_cast is safe: Copy only reads host memory in this direction.
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t size) {
  return Copy(to, static_cast<std::byte*>(const_cast<void*>(from)), size, true);
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t size) { return Copy(from, static_cast<std::byte*>(to), size, false); }

int cuStreamCreateWithPriority(Stream** handle, unsigned flags, int) { return cuStreamCreate(handle, flags); }
int cuStreamSynchronize(Stream* handle) {
  const auto stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidValue;
  stream->Wait(stream->end());
  return stream->status();
}

// Functions that cuFile looks up and does not need for transfers by host memory.
#define UNSUPPORTED(function) \
  int function() { return kNotSupported; }
UNSUPPORTED(cuCtxCreate_v2) UNSUPPORTED(cuCtxDestroy_v2) UNSUPPORTED(cuCtxEnablePeerAccess)
UNSUPPORTED(cuDeviceCanAccessPeer) UNSUPPORTED(cuEventElapsedTime) UNSUPPORTED(cuGetExportTable)
UNSUPPORTED(cuIpcCloseMemHandle) UNSUPPORTED(cuIpcGetEventHandle) UNSUPPORTED(cuIpcGetMemHandle)
UNSUPPORTED(cuIpcOpenEventHandle) UNSUPPORTED(cuIpcOpenMemHandle_v2) UNSUPPORTED(cuLaunchHostFunc)
UNSUPPORTED(cuMemAllocManaged) UNSUPPORTED(cuMemGetHandleForAddressRange) UNSUPPORTED(cuMemHostGetDevicePointer_v2)
UNSUPPORTED(cuMemcpy) UNSUPPORTED(cuMemcpyAsync) UNSUPPORTED(cuMemcpyPeer) UNSUPPORTED(cuMemcpyPeerAsync)
UNSUPPORTED(cuMemsetD8Async) UNSUPPORTED(cuMemsetD8_v2) UNSUPPORTED(cuStreamWaitEvent)
UNSUPPORTED(cuStreamWaitValue32) UNSUPPORTED(cuStreamWaitValue32_v2) UNSUPPORTED(cuStreamWriteValue32)
UNSUPPORTED(cuStreamWriteValue32_v2)
#undef UNSUPPORTED

}  // extern "C"
