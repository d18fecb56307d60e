// SPDX-License-Identifier: Apache-2.0
// Memory of a run has the same addresses in every process, because some containers are ordered by addresses. Only the
// thread that the scheduler has chosen uses it, so there is no lock.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "tests/schedule/scheduler.h"

#if defined(__SANITIZE_ADDRESS__)
namespace weightfs::schedule {
bool FixesAddresses() { return false; }
void ResetMemory() {}
size_t LiveAllocations() { return 0; }
}  // namespace weightfs::schedule
#else
namespace weightfs::schedule {
namespace {

constexpr uintptr_t kBegin = 0x3000'0000'0000;
constexpr size_t kSize = size_t{4} << 30, kUnit = 16, kSmall = 1024;
constexpr size_t kClasses = kSmall / kUnit + 40;

// Before the bytes of the caller.
struct alignas(kUnit) Header {
  uint32_t size_class;
  uint32_t padding;  // bytes before the header
};

struct Free {
  Free* next;
};

std::byte* memory = nullptr;
size_t used = 0, live = 0;
std::array<Free*, kClasses> free_lists = {};

bool IsOurs(const void* address) {
  const auto value = reinterpret_cast<uintptr_t>(address);
  return value >= kBegin && value < kBegin + kSize;
}

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "schedule: %s\n", what);
  std::abort();
}

size_t RoundUp(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

// Sizes up to kSmall in units, and larger ones in powers of two.
size_t ClassOf(size_t size) { return size <= kSmall ? (size - 1) / kUnit : kSmall / kUnit + std::bit_width(size - 1); }
size_t SizeOf(size_t size_class) {
  return size_class < kSmall / kUnit ? (size_class + 1) * kUnit : size_t{1} << (size_class - kSmall / kUnit);
}

void* Allocate(size_t size, size_t alignment) {
  if (memory == nullptr) {
    void* const mapped = mmap(reinterpret_cast<void*>(kBegin), kSize, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (mapped != reinterpret_cast<void*>(kBegin)) Fail("the addresses of its memory are taken");
    memory = static_cast<std::byte*>(mapped);
  }
  const size_t extra = alignment > kUnit ? alignment : 0;
  const size_t size_class = ClassOf(size + sizeof(Header) + extra);
  std::byte* block = reinterpret_cast<std::byte*>(free_lists[size_class]);
  if (block != nullptr) {
    free_lists[size_class] = free_lists[size_class]->next;
  } else {
    const size_t whole = SizeOf(size_class);
    if (whole > kSize - used) Fail("its memory is full");
    block = memory + used;
    used += whole;
  }
  ++live;
  size_t padding = 0;
  if (extra > 0) padding = (alignment - (reinterpret_cast<uintptr_t>(block) + sizeof(Header)) % alignment) % alignment;
  new (block + padding) Header{static_cast<uint32_t>(size_class), static_cast<uint32_t>(padding)};
  return block + padding + sizeof(Header);
}

void Release(void* address) {
  auto* const header = static_cast<Header*>(address) - 1;
  const size_t size_class = header->size_class;
  void* const block = reinterpret_cast<std::byte*>(header) - header->padding;
  free_lists[size_class] = new (block) Free{free_lists[size_class]};
  --live;
}

void* New(size_t size, size_t alignment = kUnit) {
  if (size == 0) size = 1;
  void* found = nullptr;
  if (IsScheduled()) {
    found = Allocate(size, alignment);
  } else {
    found = alignment <= kUnit ? std::malloc(size) : std::aligned_alloc(alignment, RoundUp(size, alignment));
  }
  if (found == nullptr) throw std::bad_alloc();
  return found;
}

void Delete(void* address) {
  if (!IsOurs(address)) return std::free(address);
  if (!IsScheduled()) Fail("memory of a run is freed outside it");
  Release(address);
}

}  // namespace

bool FixesAddresses() { return true; }

void ResetMemory() {
  used = 0;
  free_lists = {};
}

size_t LiveAllocations() { return live; }

}  // namespace weightfs::schedule

using weightfs::schedule::Delete;
using weightfs::schedule::New;

void* operator new(size_t size) { return New(size); }
void* operator new[](size_t size) { return New(size); }
void* operator new(size_t size, std::align_val_t alignment) { return New(size, static_cast<size_t>(alignment)); }
void* operator new[](size_t size, std::align_val_t alignment) { return New(size, static_cast<size_t>(alignment)); }
void operator delete(void* address) noexcept { Delete(address); }
void operator delete[](void* address) noexcept { Delete(address); }
void operator delete(void* address, size_t) noexcept { Delete(address); }
void operator delete[](void* address, size_t) noexcept { Delete(address); }
void operator delete(void* address, std::align_val_t) noexcept { Delete(address); }
void operator delete[](void* address, std::align_val_t) noexcept { Delete(address); }
void operator delete(void* address, size_t, std::align_val_t) noexcept { Delete(address); }
void operator delete[](void* address, size_t, std::align_val_t) noexcept { Delete(address); }
#endif
