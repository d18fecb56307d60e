// SPDX-License-Identifier: Apache-2.0
// The caller's memory of one operation: a contiguous range, a strided tensor in row-major order, several of these
// joined, or a contiguous range of GPU memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/export.h"
#include "common/error.h"

namespace weightfs::client {

// A value type; it borrows the memory. Several threads may read through it, and may call Scatter on ranges that do not
// overlap. All positions are bytes in the logical (gathered) order.
class WEIGHTFS_EXPORT MemoryView {
 public:
  MemoryView() = default;
  explicit MemoryView(std::span<std::byte> bytes) : base_(bytes.data()), size_(bytes.size()), run_(size_) {}
  // For the source of a write: a read into it fails with EINVAL.
  explicit MemoryView(std::span<const std::byte> bytes)
      : MemoryView(std::span(const_cast<std::byte*>(bytes.data()), bytes.size())) {
    constant_ = true;
  }

  // `strides` are in bytes and may be negative or 0. EINVAL if the shape has more than 2^63 - 1 bytes, or elements
  // outside the address space.
  static Result<MemoryView> Strided(void* base, size_t item_size, std::span<const int64_t> shape,
                                    std::span<const int64_t> strides);
  // GPU memory, which the host cannot access. With a stream (a CUDA stream handle; 0 is the default stream), an
  // operation begins after all work that is in the stream so far.
  static MemoryView OnDevice(uint64_t address, size_t size, std::optional<uintptr_t> stream);

  // Joins several views into one, each at its own position, in order and without overlap. The bytes between the parts,
  // and up to `size`, read as zeros and are discarded when written.
  struct Part;
  static MemoryView Joined(std::vector<Part> parts, size_t size);

  size_t size() const { return size_; }
  bool on_device() const { return on_device_; }
  uint64_t device_address() const { return reinterpret_cast<uintptr_t>(base_); }
  std::optional<uintptr_t> stream() const { return stream_; }
  // True if two elements may share a byte, so that the result of reading into the memory is undefined. Never false if
  // two do share a byte.
  bool may_overlap() const { return may_overlap_; }
  // Why nothing can be read into it; null if it can be.
  const char* WhyNotReadable() const {
    if (constant_) return "the memory is constant: nothing can be read into it";
    return may_overlap_ ? "elements of this tensor share memory: nothing can be read into it" : nullptr;
  }

  // The address of [offset, offset + length) if it is contiguous host memory; otherwise null.
  std::byte* Direct(size_t offset, size_t length) const;
  // Copies out.size() bytes, starting at `offset`, from host memory to `out`.
  void Gather(size_t offset, std::span<std::byte> out) const;
  // Copies `in` to host memory, starting at `offset`.
  void Scatter(size_t offset, std::span<const std::byte> in) const;

 private:
  struct Dimension {
    int64_t count;
    int64_t stride;  // bytes
  };

  template <bool kGather>
  void Copy(size_t offset, size_t length, std::byte* other) const;
  bool MayOverlap() const;
  // Calls `visit` for each part of the range that is in a view, with the position of its first byte in the view.
  template <typename Visit>
  void ForEachPart(size_t offset, size_t length, Visit visit) const;

  std::byte* base_ = nullptr;
  size_t size_ = 0;
  size_t run_ = 0;                     // contiguous bytes per index
  std::vector<Dimension> dimensions_;  // outer dimensions, outermost first; empty: one contiguous run
  bool may_overlap_ = false;
  bool constant_ = false;
  bool on_device_ = false;
  std::optional<uintptr_t> stream_;                 // CUDA stream
  std::shared_ptr<const std::vector<Part>> parts_;  // set by Joined
};

struct MemoryView::Part {
  size_t at = 0;
  MemoryView view;
};

}  // namespace weightfs::client
