// SPDX-License-Identifier: Apache-2.0
// Makes one call of operator new of a program fail, also one of a library. The program loads this library by
// LD_PRELOAD. The file that FAILING_NEW names has two numbers: how many calls there were, and which one fails (0:
// none). The test may change it meanwhile.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

struct Numbers {
  std::atomic<uint64_t> made, fails;
};
Numbers* numbers = nullptr;

__attribute__((constructor)) void Map() {
  const char* path = std::getenv("FAILING_NEW");
  const int file = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  void* mapped = mmap(nullptr, sizeof(Numbers), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) numbers = static_cast<Numbers*>(mapped);
}

bool Fails() {
  if (numbers == nullptr || numbers->made.fetch_add(1) + 1 != numbers->fails.load()) return false;
  return true;
}

}  // namespace

// As that of libstdc++, which calls malloc. It serves operator new[], too.
void* operator new(size_t size) {
  while (true) {
    void* memory = Fails() ? nullptr : std::malloc(size == 0 ? 1 : size);
    if (memory != nullptr) return memory;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}
