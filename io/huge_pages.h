// SPDX-License-Identifier: Apache-2.0
// Memory in huge pages.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/error.h"

namespace weightfs {

// Private memory, page-aligned: anonymous and zeroed, or of a file. Anonymous memory begins on a huge page from 2 MiB
// on, and the kernel is advised to use huge pages. Move-only; the destructor unmaps the memory. Externally
// synchronized.
class HugePageMemory {
 public:
  // Maps `size` bytes, rounded up to pages. `flags` are further flags of mmap(2). Returns the errno of mmap.
  static Result<HugePageMemory> Map(size_t size, int flags = 0);
  // Maps a range of a file instead, from a page on; a page that is written to becomes a private copy. Where the file
  // has huge pages, the memory has them, too.
  static Result<HugePageMemory> MapFile(int file, uint64_t offset, size_t size);

  HugePageMemory() = default;
  HugePageMemory(HugePageMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_), advice_error_(other.advice_error_) {}
  HugePageMemory& operator=(HugePageMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(advice_error_, other.advice_error_);
    return *this;
  }
  ~HugePageMemory() {
    if (data_ != nullptr) munmap(data_, size_);
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }  // mapped bytes
  // The errno of madvise(2) if the kernel refused huge pages, else 0. The memory then has ordinary pages.
  int advice_error() const { return advice_error_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  int advice_error_ = 0;
};

}  // namespace weightfs
