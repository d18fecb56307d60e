// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_gpu/fake_gpu.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tests/support/fake_gpu/gpus.h"

using namespace fake_gpu;

namespace {

constexpr uint64_t kPage = 4096;

}  // namespace

extern "C" {

uint64_t fake_gpu_allocate(size_t size, int ordinal) {
  Allocation allocation{.size = size, .mapped = (size + kPage - 1) / kPage * kPage + kPage, .ordinal = ordinal};
  const int memory = memfd_create("fake-gpu", MFD_CLOEXEC);
  if (memory < 0 || ftruncate(memory, static_cast<off_t>(allocation.mapped)) != 0) std::abort();
  void* shown = mmap(nullptr, allocation.mapped, PROT_NONE, MAP_SHARED, memory, 0);
  void* hidden = mmap(nullptr, allocation.mapped, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (shown == MAP_FAILED || hidden == MAP_FAILED) std::abort();
  close(memory);
  allocation.hidden = static_cast<std::byte*>(hidden);
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.allocations[reinterpret_cast<uint64_t>(shown)] = allocation;
  return reinterpret_cast<uint64_t>(shown);
}
void fake_gpu_free(uint64_t address) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  const auto found = fake.allocations.find(address);
  if (found == fake.allocations.end()) std::abort();
  munmap(reinterpret_cast<void*>(address), found->second.mapped);
  munmap(found->second.hidden, found->second.mapped);
  fake.allocations.erase(found);
}
void fake_gpu_poke(uint64_t address, const void* bytes, size_t size) {
  std::memcpy(TheFake().Hidden(address, size), bytes, size);
}
void fake_gpu_peek(uint64_t address, void* bytes, size_t size) {
  std::memcpy(bytes, TheFake().Hidden(address, size), size);
}
void fake_gpu_fail(const char* function, int after, int times, int status) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.failures[function] = {after, times, status};
}
void fake_gpu_fail_copy(int after, int status) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.copy_failure = {after, 1, status};
}
void fake_gpu_limit_transfers(size_t bytes) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.limit = bytes;
}
void fake_gpu_set_kinds(unsigned kinds) { TheFake().kinds = kinds; }
void fake_gpu_set_devices(int count) { TheFake().devices = count; }
void fake_gpu_hold_default_stream(int ordinal, uint64_t address, const void* bytes, size_t size) {
  Fake& fake = TheFake();
  Stack().push_back(&fake.contexts[ordinal]);
  const auto stream = StreamOf(nullptr);
  Stack().pop_back();
  const auto* begin = static_cast<const std::byte*>(bytes);
  std::vector<std::byte> copy(begin, begin + size);
  std::byte* hidden = fake.Hidden(address, size);
  const std::lock_guard lock(fake.mutex);
  fake.held = true;
  stream->Put([&fake, hidden, copy = std::move(copy)] {
    {
      std::unique_lock held(fake.mutex);
      fake.released.wait(held, [&] { return !fake.held; });
    }
    std::memcpy(hidden, copy.data(), copy.size());
    return 0;
  });
}
void fake_gpu_release(void) {
  Fake& fake = TheFake();
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const std::lock_guard lock(fake.mutex);
    fake.held = false;
    fake.released.notify_all();
    for (const auto& stream : fake.default_streams) {
      if (stream != nullptr) streams.push_back(stream);
    }
  }
  for (const auto& stream : streams) stream->Wait(stream->end());
}
void fake_gpu_capture(uint64_t stream) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.captured = stream;
}
void fake_gpu_end_capture(void) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.captured.reset();
}
void fake_gpu_await_copies(unsigned count) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.awaited_copies = count;
}
void fake_gpu_reset(void) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.failures.clear();
  fake.copy_failure = {};
  fake.limit = 0;
  fake.captured.reset();
  fake.kinds = 0;
  fake.devices = 1;
  fake.held = false;
  fake.released.notify_all();
  fake.awaited_copies = 0;
  fake.counts = {};
}
void fake_gpu_count(FakeGpuCounts* counts) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  *counts = fake.counts;
  counts->contexts = static_cast<uint64_t>(fake.retained);
  counts->streams = fake.streams.size();
  counts->events = fake.events.size();
  counts->page_locks = fake.locked.size();
  counts->files = fake.files.size();
  counts->pins = fake.pinned.size();
}
int fake_gpu_context_depth(void) { return static_cast<int>(Stack().size()); }

}  // extern "C"
