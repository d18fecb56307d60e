// SPDX-License-Identifier: Apache-2.0
// Page-aligned memory for the transfers of tests.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "common/units.h"

namespace weightfs {

class AlignedMemory {
 public:
  explicit AlignedMemory(size_t size, char fill = 0)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(kBlockSize, RoundUp(size, kBlockSize)))), size_(size) {
    std::memset(memory_.get(), fill, size);
  }

  std::byte* data() const { return memory_.get(); }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_;
};

}  // namespace weightfs
