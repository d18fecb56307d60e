// SPDX-License-Identifier: Apache-2.0
// The part of CUDA's driver that the client uses.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "tests/support/fake_gpu/gpus.h"

using namespace fake_gpu;

namespace {

// CUDA's status codes.
constexpr int kNoDevice = 100;
constexpr int kNotReady = 600;
constexpr int kCudaVersion = 13000;

bool Known(Event* event) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  if (fake.events.count(event) != 0) return true;
  ++fake.counts.mistakes;
  return false;
}

int Copy(const char* function, bool to_gpu, uint64_t address, std::byte* host, size_t size, Stream* handle) {
  Fake& fake = TheFake();
  if (const int status = Enter(function); status != 0) return status;
  std::byte* hidden = fake.Hidden(address, size);
  const auto stream = StreamOf(handle);
  if (hidden == nullptr || stream == nullptr) return kInvalidValue;
  {
    const std::lock_guard lock(fake.mutex);
    ++(to_gpu ? fake.counts.copies_to_gpu : fake.counts.copies_to_host);
    const auto begin = reinterpret_cast<uint64_t>(host);
    const auto after = fake.locked.upper_bound(begin);
    const bool locked =
        after != fake.locked.begin() && begin + size <= std::prev(after)->first + std::prev(after)->second;
    if (!locked) ++fake.counts.copies_of_unlocked_memory;
    fake.counts.most_copies_at_once = std::max(fake.counts.most_copies_at_once, ++fake.copies);
    fake.copy_started.notify_all();
  }
  stream->Put([&fake, to_gpu, hidden, host, size] {
    bool fails = false;
    {
      std::unique_lock lock(fake.mutex);
      const auto enough = [&fake] { return fake.counts.most_copies_at_once >= fake.awaited_copies; };
      if (!fake.copy_started.wait_for(lock, std::chrono::seconds(30), enough)) fake.awaited_copies = 0;
      fails = Fake::Take(fake.copy_failure);
    }
    if (!fails) std::memcpy(to_gpu ? hidden : host, to_gpu ? host : hidden, size);
    const std::lock_guard lock(fake.mutex);
    --fake.copies;
    return fails ? fake.copy_failure.status : 0;
  });
  return 0;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return TheFake().InjectedStatus("cuInit"); }
int cuDriverGetVersion(int* version) {
  *version = kCudaVersion;
  return TheFake().InjectedStatus("cuDriverGetVersion");
}
int cuDeviceGetCount(int* count) {
  *count = TheFake().devices;
  return TheFake().InjectedStatus("cuDeviceGetCount");
}
int cuDeviceGet(int* handle, int ordinal) {
  *handle = ordinal;
  return ordinal < TheFake().devices ? TheFake().InjectedStatus("cuDeviceGet") : kNoDevice;
}
int cuDeviceGetName(char* name, int size, int handle) {
  std::snprintf(name, static_cast<size_t>(size), "Fake GPU %d", handle);
  return TheFake().InjectedStatus("cuDeviceGetName");
}
int cuDevicePrimaryCtxRetain(Context** context, int handle) {
  Fake& fake = TheFake();
  if (const int status = fake.InjectedStatus("cuDevicePrimaryCtxRetain"); status != 0) return status;
  const std::lock_guard lock(fake.mutex);
  ++fake.retained;
  *context = &fake.contexts[handle];
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  --fake.retained;
  return 0;
}
int cuCtxPushCurrent_v2(Context* context) {
  if (const int status = TheFake().InjectedStatus("cuCtxPushCurrent"); status != 0) return status;
  Stack().push_back(context);
  return 0;
}
int cuCtxPopCurrent_v2(Context** context) {
  if (Stack().empty()) {
    TheFake().Mistake();
    return kInvalidContext;
  }
  *context = Stack().back();
  Stack().pop_back();
  return 0;
}
int cuPointerGetAttribute(void* value, int attribute, uint64_t address) {
  return TheFake().Attribute(value, attribute, address);
}
int cuStreamCreate(Stream** handle, unsigned) {
  if (const int status = Enter("cuStreamCreate"); status != 0) return status;
  Fake& fake = TheFake();
  auto stream = std::make_shared<Stream>();
  *handle = stream.get();
  const std::lock_guard lock(fake.mutex);
  fake.streams[stream.get()] = std::move(stream);
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, CaptureMode());
  return 0;
}
int cuStreamIsCapturing(Stream* handle, int* capturing) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  *capturing = fake.captured == reinterpret_cast<uint64_t>(handle) ? 1 : 0;
  return 0;
}
int cuStreamDestroy_v2(Stream* handle) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  if (fake.streams.erase(handle) == 0) ++fake.counts.mistakes;
  return 0;
}
int cuEventCreate(Event** event, unsigned) {
  if (const int status = Enter("cuEventCreate"); status != 0) return status;
  Fake& fake = TheFake();
  *event = new Event;
  const std::lock_guard lock(fake.mutex);
  fake.events.insert(*event);
  return 0;
}
int cuEventDestroy_v2(Event* event) {
  if (!Known(event)) return kInvalidValue;
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.events.erase(event);
  delete event;
  return 0;
}
int cuEventRecord(Event* event, Stream* handle) {
  if (const int status = Enter("cuEventRecord"); status != 0) return status;
  const auto stream = StreamOf(handle);
  if (stream == nullptr || !Known(event)) return kInvalidValue;
  event->stream = stream;
  event->point = stream->end();
  return 0;
}
int cuEventQuery(Event* event) {
  if (const int status = Enter("cuEventQuery"); status != 0) return status;
  if (!Known(event)) return kInvalidValue;
  if (event->stream == nullptr) return 0;
  return event->stream->Reached(event->point) ? event->stream->status() : kNotReady;
}
int cuEventSynchronize(Event* event) {
  if (const int status = Enter("cuEventSynchronize"); status != 0) return status;
  if (!Known(event)) return kInvalidValue;
  if (event->stream == nullptr) return 0;
  event->stream->Wait(event->point);
  return event->stream->status();
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t size, Stream* stream) {
  // The const_cast is safe: Copy only reads `from` in this direction.
  return Copy("cuMemcpyHtoDAsync", true, to, static_cast<std::byte*>(const_cast<void*>(from)), size, stream);
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t size, Stream* stream) {
  return Copy("cuMemcpyDtoHAsync", false, from, static_cast<std::byte*>(to), size, stream);
}
int cuMemHostRegister_v2(void* memory, size_t size, unsigned) {
  if (const int status = Enter("cuMemHostRegister"); status != 0) return status;
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.locked[reinterpret_cast<uint64_t>(memory)] = size;
  return 0;
}
int cuMemHostUnregister(void* memory) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  if (fake.locked.erase(reinterpret_cast<uint64_t>(memory)) == 0) ++fake.counts.mistakes;
  return 0;
}
int cuGetErrorName(int, const char** name) {
  *name = "FAKE_ERROR";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "a fake error";
  return 0;
}

}  // extern "C"
