// SPDX-License-Identifier: Apache-2.0
// Makes one allocation of a program fail, also one of operator new or of a library. The program loads this library by
// LD_PRELOAD. The file that FAILING_MALLOC names has two numbers: how many allocations there were, and which one fails
// (0: none). The test may change it meanwhile.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}

namespace {

struct Numbers {
  std::atomic<uint64_t> made, fails;
};
Numbers* numbers = nullptr;

__attribute__((constructor)) void Map() {
  const char* path = std::getenv("FAILING_MALLOC");
  const int file = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  void* mapped = mmap(nullptr, sizeof(Numbers), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) numbers = static_cast<Numbers*>(mapped);
}

bool Fails() {
  if (numbers == nullptr || numbers->made.fetch_add(1) + 1 != numbers->fails.load()) return false;
  errno = ENOMEM;
  return true;
}

}  // namespace

extern "C" {
void* malloc(size_t size) { return Fails() ? nullptr : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return Fails() ? nullptr : __libc_calloc(count, size); }
void* realloc(void* memory, size_t size) { return Fails() ? nullptr : __libc_realloc(memory, size); }
void* aligned_alloc(size_t alignment, size_t size) { return Fails() ? nullptr : __libc_memalign(alignment, size); }
int posix_memalign(void** memory, size_t alignment, size_t size) {
  *memory = Fails() ? nullptr : __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
}
