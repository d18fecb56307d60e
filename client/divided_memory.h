// SPDX-License-Identifier: Apache-2.0
// One allocation, which one read fills or which maps a file, and that then has many owners, each of a part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <variant>

#include "common/error.h"
#include "common/interval_map.h"
#include "common/mutex.h"
#include "io/huge_pages.h"

namespace weightfs::client {

// Uninitialized memory, or that of a file. Uninitialized memory begins on a huge page from 4 MiB on, and has huge
// pages if the kernel provides them; smaller memory is aligned to 64 bytes. It is freed with its last part. Each part
// that is freed before gives its pages back to the kernel at once; a page that also has bytes of other parts follows
// with the last of them. Thread-safe.
class DividedMemory : public std::enable_shared_from_this<DividedMemory> {
 public:
  // A range of the memory. Immutable.
  class Part {
   public:
    ~Part() { memory_->Free(data_, size_); }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;
    std::byte* data() const { return data_; }
    size_t size() const { return size_; }

   private:
    friend class DividedMemory;
    Part(std::shared_ptr<DividedMemory> memory, std::byte* data, size_t size)
        : memory_(std::move(memory)), data_(data), size_(size) {}

    const std::shared_ptr<DividedMemory> memory_;
    std::byte* const data_;
    const size_t size_;
  };

  // ENOMEM if there is not enough memory.
  static Result<std::shared_ptr<DividedMemory>> Allocate(size_t size);
  // The memory of a file, from a page of it on, privately mapped (HugePageMemory::MapFile). ENOMEM also if such memory
  // takes a quarter of the mappings that the kernel allows a process: they never join.
  static Result<std::shared_ptr<DividedMemory>> Map(int file, uint64_t offset, size_t size);

  ~DividedMemory();
  std::byte* data() const { return large_.data() != nullptr ? large_.data() : small_.get(); }
  size_t size() const { return size_; }
  // The part [begin, begin + size) of the memory. It must not be empty, nor overlap another part, even a freed one.
  std::shared_ptr<Part> Take(size_t begin, size_t size);

 private:
  struct Deallocate {
    void operator()(std::byte* data) const { std::free(data); }
  };
  using SmallMemory = std::unique_ptr<std::byte, Deallocate>;

  DividedMemory(HugePageMemory large, SmallMemory small, size_t size, bool of_file = false)
      : large_(std::move(large)), small_(std::move(small)), size_(size), of_file_(of_file) {}
  void Free(const std::byte* data, size_t size);

  const HugePageMemory large_;  // one of the two is empty
  const SmallMemory small_;
  const size_t size_;
  const bool of_file_;
  Mutex mutex_;
  IntervalMap<std::monostate> freed_ GUARDED_BY(mutex_);  // by address; adjacent ranges are joined
};

}  // namespace weightfs::client
